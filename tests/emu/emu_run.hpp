/* Inside the emulator: what its two halves, blocks (emu_block.cpp) and runtime, share. */
#ifndef RV_EMU_RUN_HPP
#define RV_EMU_RUN_HPP

#include "emu.hpp"

namespace emu {
/* Runs all blocks of a launch in the calling thread; `tick` is counted up for the watchdog. */
void run_blocks(dim3 grid, dim3 block, const char *name, const std::function<void()> &thread,
                volatile unsigned long *tick);
/* Fibres of the calling thread are given back. */
void run_finish();
/* "emu: ..." on standard error, and the end. */
[[noreturn]] void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));
int setting(const char *name, int initial);
} // namespace emu

/* The sanitizers' interface, where one is built in. This half of the emulator is not instrumented:
 * what orders the threads of the emulated device is said, and nothing else. */
extern "C" {
#ifdef EMU_THREAD
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *at);
void __tsan_release(void *at);
void __tsan_read_range(void *at, unsigned long bytes);
void __tsan_write_range(void *at, unsigned long bytes);
#define EMU_ACQUIRE(at) __tsan_acquire(at)
#define EMU_RELEASE(at) __tsan_release(at)
#define EMU_READS(at, bytes) __tsan_read_range((void *)(at), bytes)
#define EMU_WRITES(at, bytes) __tsan_write_range(at, bytes)
#else
#define EMU_ACQUIRE(at) ((void)(at))
#define EMU_RELEASE(at) ((void)(at))
#define EMU_READS(at, bytes) ((void)(at), (void)(bytes))
#define EMU_WRITES(at, bytes) ((void)(at), (void)(bytes))
#endif
#ifdef EMU_ADDRESS
void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size);
void __asan_poison_memory_region(const volatile void *at, size_t bytes);
void __asan_unpoison_memory_region(const volatile void *at, size_t bytes);
#define EMU_POISON(at, bytes) __asan_poison_memory_region(at, bytes)
#define EMU_UNPOISON(at, bytes) __asan_unpoison_memory_region(at, bytes)
#else
#define EMU_POISON(at, bytes) ((void)(at), (void)(bytes))
#define EMU_UNPOISON(at, bytes) ((void)(at), (void)(bytes))
#endif
}

#endif
