# Ranvier. `make help` lists targets and options.
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules
SHELL := /bin/bash
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

# ---- options ------------------------------------------------------------------------------------
SAN ?=
V ?=
FAULTS ?=
CUDA ?=
CXX := $(if $(filter default undefined,$(origin CXX)),g++,$(CXX))
SM ?= 90
HDF5 ?= auto
DNNL ?= auto
CAIRO ?= auto
CC := $(if $(filter default undefined,$(origin CC)),gcc,$(CC))
AR := $(if $(filter default undefined,$(origin AR)),ar,$(AR))
PKG_CONFIG ?= pkg-config
CFLAGS ?= -O2 -g
CPPFLAGS ?=
LDFLAGS ?=
LDLIBS ?=
PREFIX ?= /usr/local
DESTDIR ?=
DIR ?= tests/golden
TESTS ?= *
PEERS ?=
BENCH ?=
FOLDERS ?= kernels snn data pipeline
QUIET := $(if $(V),,@)
GOALS := $(if $(filter undefined,$(origin MAKECMDGOALS)),all,$(MAKECMDGOALS))

ifneq ($(filter-out address thread undefined,$(SAN)),)
$(error SAN=$(SAN) is not one of: address thread undefined)
endif

# ---- probes: none for targets that build nothing --------------------------------------------------
ifneq ($(filter-out help clean lint,$(GOALS)),)
version = $(shell $(PKG_CONFIG) --modversion $(1) 2>/dev/null)
# $(call need,pkg-config name,Debian package): stop with the package to install
need = $(if $(call version,$(1)),,$(error $(1) was not found; on Debian or Ubuntu: apt install $(2)))
ifeq ($(shell command -v $(PKG_CONFIG)),)
$(error $(PKG_CONFIG) was not found; on Debian or Ubuntu: apt install pkg-config)
endif
ifeq ($(shell command -v $(firstword $(CC))),)
$(error $(CC) was not found; on Debian or Ubuntu: apt install gcc)
endif
$(call need,yaml-0.1,libyaml-dev)
$(call need,jansson,libjansson-dev)
$(call need,zlib,zlib1g-dev)

HDF5_PKG := $(firstword $(foreach p,hdf5-serial hdf5,$(if $(call version,$(p)),$(p))))
override HDF5 := $(if $(filter 0,$(HDF5)),0,$(if $(HDF5_PKG),1,$(if $(filter 1,$(HDF5)),$(error \
    HDF5=1, but HDF5 was not found; on Debian or Ubuntu: apt install libhdf5-dev),0)))
# oneDNN brings no pkg-config file: ask its header. Only the interface of version 2 is used.
HASH := \#
DNNL_VERSION := $(shell printf '$(HASH)include <dnnl_version.h>\nRV DNNL_VERSION_MAJOR.DNNL_VERSION_MINOR\n' \
    | $(CC) $(CPPFLAGS) -E -P - 2>/dev/null | sed -n 's, ,,g; s,^RV\([0-9]\),\1,p')
override DNNL := $(if $(filter 0,$(DNNL)),0,$(if $(filter 2.%,$(DNNL_VERSION)),1,$(if $(filter 1,$(DNNL)),$(error \
    DNNL=1, but oneDNN 2 was not found (version here: $(or $(DNNL_VERSION),none)); on Debian: apt install libdnnl-dev),0)))
override CAIRO := $(if $(filter 0,$(CAIRO)),0,$(if $(call version,cairo),1,$(if $(filter 1,$(CAIRO)),$(error \
    CAIRO=1, but cairo was not found; on Debian or Ubuntu: apt install libcairo2-dev),0)))
CAIRO_CFLAGS := $(if $(filter 1,$(CAIRO)),-DRV_CAIRO $(shell $(PKG_CONFIG) --cflags cairo))
MACHINE := $(shell $(CC) -dumpmachine)
COMPILER := $(shell $(CC) --version | head -n 1)
HARD_PKGS := yaml-0.1 jansson zlib $(if $(filter 1,$(HDF5)),$(HDF5_PKG))
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(HARD_PKGS))
PKG_LIBS := $(shell $(PKG_CONFIG) --libs $(HARD_PKGS)) $(if $(filter 1,$(DNNL)),-ldnnl -lgomp) \
    $(if $(filter 1,$(CAIRO)),$(shell $(PKG_CONFIG) --libs cairo))
else
HDF5_PKG :=
DNNL_VERSION :=
MACHINE :=
COMPILER :=
PKG_CFLAGS :=
PKG_LIBS :=
CAIRO_CFLAGS :=
endif

# ---- flags: every set of options has its own tree --------------------------------------------------
CC_NAME := $(notdir $(firstword $(CC)))
VARIANT := release$(if $(filter cc gcc,$(CC_NAME)),,-$(CC_NAME))$(if $(SAN),-$(SAN))$(if \
    $(filter 0,$(HDF5)),-nohdf5)$(if $(filter 0,$(DNNL)),-nodnnl)$(if $(filter 1,$(FAULTS)),-faults)
OUT := build/$(VARIANT)
DEFS := -D_GNU_SOURCE $(if $(filter 1,$(HDF5)),-DRV_HDF5) $(if $(filter 1,$(DNNL)),-DRV_DNNL) \
    $(if $(filter 1,$(FAULTS)),-DRV_FAULTS)
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wundef -Wvla
ARITH := -std=c11 -ffp-contract=off -fno-math-errno -fno-trapping-math
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer) \
    $(if $(filter undefined,$(SAN)),-fno-sanitize-recover=all)
ALL_CFLAGS = $(CFLAGS) $(ARITH) $(WARN) $(SANFLAGS) $(DEFS) -I. $(PKG_CFLAGS) $(CPPFLAGS) -MMD -MP -pthread
ALL_LDFLAGS = $(LDFLAGS) $(SANFLAGS) -pthread
ALL_LDLIBS = $(PKG_LIBS) -ldl -lm $(LDLIBS)
TEST_CFLAGS = -DRV_PROGRAM='"$(OUT)/ranvier"'

# ---- objects: cpu_*.c once per instruction set, with a suffix on every name ------------------------
LEVELS := $(if $(findstring x86_64,$(MACHINE)),baseline avx2 avx512,baseline)
LEVEL_baseline :=
LEVEL_avx2 := -march=x86-64-v3
LEVEL_avx512 := -march=x86-64-v4 -mprefer-vector-width=512
# Sanitizers make the specialised kernels slow to compile, and -O3 no better to check.
KERNEL_OPT := $(if $(SAN),-O1,-O3)
CPU_SRC := $(filter $(FOLDERS:%=%/%),$(wildcard kernels/cpu_*.c))
LIB_SRC := $(filter-out $(CPU_SRC) pipeline/main.c pipeline/cmd_%.c,$(wildcard $(FOLDERS:%=%/*.c)))
CMD_SRC := $(wildcard pipeline/main.c pipeline/cmd_*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(OUT)/%.o) $(foreach l,$(LEVELS),$(CPU_SRC:%.c=$(OUT)/%.$(l).o))
CMD_OBJ := $(CMD_SRC:%.c=$(OUT)/%.o)
LIB := $(OUT)/libranvier.a
TEST_BIN := $(patsubst tests/%.c,$(OUT)/tests/%,$(wildcard $(TESTS:%=tests/test_%.c)))
GOLDEN_OBJ := $(patsubst %.c,$(OUT)/%.o,$(wildcard tests/golden*.c))

.PHONY: all lib cuda emu test-emu test test-long soak test-long-faults soak-faults lint golden bench bench-kernels bench-pipe bench-delay install help clean summary FORCE
all: summary build/ranvier

summary:
	@echo "compiler  $(COMPILER), $(MACHINE), levels: $(LEVELS)"
	@echo "HDF5      $(if $(filter 1,$(HDF5)),$(call version,$(HDF5_PKG)) ($(HDF5_PKG)),off: no model files)"
	@echo "oneDNN    $(if $(filter 1,$(DNNL)),$(DNNL_VERSION),off: own dense products, slower)"
	@echo "cairo     $(if $(filter 1,$(CAIRO)),$(call version,cairo),off: no pictures)"
	@echo "tree      $(OUT)"

build/ranvier: $(OUT)/ranvier FORCE
	$(QUIET)ln -sfn $(OUT:build/%=%)/ranvier $@

$(OUT)/ranvier: $(CMD_OBJ) $(LIB)
	$(QUIET)$(CC) $(ALL_LDFLAGS) -o $@ $(CMD_OBJ) $(LIB) $(ALL_LDLIBS)

lib: $(LIB)
$(LIB): $(LIB_OBJ)
	$(QUIET)rm -f $@ && $(AR) rcs $@ $^

# Holds the flags of this tree; newer than the objects only when they changed.
$(OUT)/flags: FORCE
	@mkdir -p $(@D); f='$(subst ','\'',$(CC) $(ALL_CFLAGS) $(LEVELS))'; \
	    cmp -s <(echo "$$f") $@ || echo "$$f" >$@

define level_rule
$(OUT)/kernels/cpu_%.$(1).o: kernels/cpu_%.c $(OUT)/flags
	@mkdir -p $$(@D)
	$$(QUIET)$$(CC) $$(ALL_CFLAGS) $$(KERNEL_OPT) $$(LEVEL_$(1)) -DRV_LEVEL=$(1) -c -o $$@ $$<
endef
$(foreach l,$(LEVELS),$(eval $(call level_rule,$(l))))

$(OUT)/tests/golden%.o: tests/golden%.c $(OUT)/flags
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(TEST_CFLAGS) -c -o $@ $<

$(OUT)/kernels/half.o: ALL_CFLAGS += $(KERNEL_OPT)
$(OUT)/%.o: %.c $(OUT)/flags
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -c -o $@ $<

# Only this file knows cairo; a tree is not built anew for it.
$(OUT)/pipeline/plot_draw.o: CPPFLAGS += $(CAIRO_CFLAGS)

$(OUT)/tests/golden: $(GOLDEN_OBJ) $(LIB)
	$(QUIET)$(CC) $(ALL_LDFLAGS) -o $@ $(GOLDEN_OBJ) $(LIB) $(ALL_LDLIBS)

comma := ,
# What tests/turns.h looks in on; tests/accounts.h includes it.
TURN_TESTS := $(patsubst tests/%.c,$(OUT)/tests/%,$(shell grep -lE '"tests/(turns|accounts).h"' tests/test_*.c))
$(TURN_TESTS): ALL_LDFLAGS += -Wl,--wrap=rv_stage_step
# Calls of our own code that may allocate or block.
$(OUT)/tests/test_pipeline_blocks: ALL_LDFLAGS += $(patsubst %,-Wl$(comma)--wrap=%,posix_memalign malloc calloc realloc)
$(OUT)/tests/test_pipeline_steady: ALL_LDFLAGS += $(patsubst %,-Wl$(comma)--wrap=%,posix_memalign malloc calloc \
    realloc nanosleep usleep read pread write pwrite fsync $(addprefix pthread_,create join cond_wait cond_timedwait \
    mutex_lock mutex_unlock) rv_writer_submit)
$(OUT)/tests/test_pipeline_seeds: ALL_LDFLAGS += $(patsubst %,-Wl$(comma)--wrap=%,pread pwrite rv_writer_step)
$(OUT)/tests/%: tests/%.c $(LIB) $(OUT)/flags
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(TEST_CFLAGS) $(ALL_LDFLAGS) -o $@ $< $(LIB) -lcmocka $(ALL_LDLIBS)

# ---- plug-ins: kernels/cuda_*.cu with nvcc, and with g++ against the emulator of the tests ----------
CUDA_SRC := $(wildcard kernels/cuda_*.cu)
CUDA_OBJ := $(CUDA_SRC:%.cu=$(OUT)/cuda/%.o)
NVCC := $(if $(filter 0,$(CUDA)),,$(firstword $(if $(CUDA),$(wildcard $(CUDA)/bin/nvcc),$(shell command -v nvcc) \
    $(wildcard /usr/local/cuda/bin/nvcc))))
CUDA_LIB := $(firstword $(if $(CUDA),$(wildcard $(CUDA)/lib64)) $(wildcard $(patsubst %/bin/nvcc,%/lib64,$(NVCC)) /usr/local/cuda/lib64))
NVCC_FLAGS = -std=c++17 -O3 -gencode arch=compute_$(SM),code=sm_$(SM) -ftz=true -fmad=false -Werror all-warnings \
    -Xcompiler -fPIC,-Wall,-Wextra,-fvisibility=hidden,-fno-threadsafe-statics,-fno-exceptions,-fno-rtti -I.
# Bits must not depend on it: only the emulator's speed does.
EMU_ARCH := $(if $(shell grep -m1 -w fma /proc/cpuinfo | grep -w avx2),-march=x86-64-v3)
EMU_FLAGS = -std=c++17 -O2 -g -Wall -Wextra -Wshadow -fPIC -fvisibility=hidden -fno-exceptions -ffp-contract=off \
    $(EMU_ARCH) -I. -Itests/emu -MMD -MP -pthread
# The emulator itself is not instrumented: it tells the sanitizers what its threads and fibres do.
EMU_SAN := $(if $(filter address,$(SAN)),-DEMU_ADDRESS)$(if $(filter thread,$(SAN)),-DEMU_THREAD)
EMU_OBJ := $(patsubst tests/emu/%.cpp,$(OUT)/emu/%.o,$(wildcard tests/emu/emu_*.cpp))
EMU_PLUGIN := $(OUT)/ranvier_emu.so $(OUT)/tests/ranvier_emu.so
EMU_BIN := $(patsubst tests/emu/%.c,$(OUT)/tests/%,$(wildcard tests/emu/test_*.c)) $(OUT)/tests/test_emu_faults

cuda: $(if $(NVCC),all $(OUT)/ranvier_cuda.so)
	$(if $(NVCC),,@echo 'cuda: no nvcc in the PATH, in CUDA= or in /usr/local/cuda: no plug-in for GPUs' >&2; exit 69)
$(OUT)/cuda/%.o: %.cu $(OUT)/flags
	@mkdir -p $(@D)
	$(QUIET)$(NVCC) $(NVCC_FLAGS) -MMD -MF $(@:.o=.d) -c -o $@ $<
$(OUT)/ranvier_cuda.so: $(CUDA_OBJ)
	$(QUIET)$(NVCC) -shared -o $@ $^ -L$(CUDA_LIB) -lcublas -Xlinker -rpath -Xlinker $(CUDA_LIB)

emu: all $(EMU_PLUGIN)
$(OUT)/emu/%.o: %.cu $(OUT)/flags
	@mkdir -p $(@D)
	$(QUIET)$(CXX) $(EMU_FLAGS) $(SANFLAGS) -x c++ -c -o $@ $<
$(OUT)/emu/%.o: tests/emu/%.cpp $(OUT)/flags
	@mkdir -p $(@D)
	$(QUIET)$(CXX) $(EMU_FLAGS) $(EMU_SAN) -c -o $@ $<
$(OUT)/ranvier_emu.so: $(CUDA_SRC:%.cu=$(OUT)/emu/%.o) $(EMU_OBJ)
	$(QUIET)$(CXX) -shared $(SANFLAGS) -pthread -Wl,-Bsymbolic -o $@ $^
$(OUT)/tests/ranvier_emu.so: $(OUT)/ranvier_emu.so
	@mkdir -p $(@D)
	$(QUIET)ln -sfn ../ranvier_emu.so $@
$(OUT)/tests/test_emu_faults: tests/emu/test_faults.cpp $(EMU_OBJ) $(OUT)/flags
	@mkdir -p $(@D)
	$(QUIET)$(CXX) $(EMU_FLAGS) -g $(SANFLAGS) $(if $(SAN),-DEMU_SAN='"$(SAN)"') -o $@ $< $(EMU_OBJ) -lcmocka
$(OUT)/tests/test_emu_%: tests/emu/test_emu_%.c $(LIB) $(OUT)/flags
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(TEST_CFLAGS) $(ALL_LDFLAGS) -o $@ $< $(LIB) -lcmocka $(ALL_LDLIBS)

# ---- targets people call ----------------------------------------------------------------------------
test: all $(TEST_BIN)
	$(QUIET)scripts/run_tests $(OUT) $(TEST_BIN)

test-emu: emu $(EMU_BIN)
	$(QUIET)scripts/run_tests $(OUT) $(EMU_BIN)

# Loops a tenth of, and in full, what tests/scale.h says; the calls that fail need a build of theirs.
test-long soak: all $(TEST_BIN)
	$(QUIET)RV_TEST_SCALE=$@ RV_TEST_SECONDS=7200 scripts/run_tests $(OUT) $(TEST_BIN)
	$(QUIET)$(MAKE) --no-print-directory FAULTS=1 OUT=$(OUT)-faults $@-faults
	$(if $(filter soak,$@),$(QUIET)scripts/delay_study deep && scripts/delay_study fashion --speed)
test-long-faults soak-faults: all $(filter %_faults,$(TEST_BIN))
	$(QUIET)RV_TEST_SCALE=$(@:-faults=) RV_TEST_SECONDS=7200 scripts/run_tests $(OUT) \
	    $(filter %_faults,$(TEST_BIN))

lint:
	$(QUIET)scripts/lint

golden: $(if $(filter 1,$(HDF5)),$(OUT)/tests/golden)
	$(if $(filter 1,$(HDF5)),,@echo 'golden: the vectors are HDF5 files; this build has HDF5=0' >&2; exit 1)
	$(QUIET)$(OUT)/tests/golden $(DIR)

# PEERS=python: ratios to the Python libraries it has. BENCH: options of scripts/bench.
bench: all
	$(QUIET)PEERS='$(PEERS)' scripts/bench --program $(OUT)/ranvier -o $(OUT)/bench.json $(BENCH)

bench-kernels: $(OUT)/tests/bench_kernels
	$(QUIET)$< $(OUT)/bench_kernels.json

bench-pipe bench-delay: bench-%: $(OUT)/tests/bench_%
	$(QUIET)$< scripts/recipes/bench_pipe.yaml

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(OUT)/ranvier $(DESTDIR)$(PREFIX)/bin/ranvier
	install -m 644 pipeline/ranvier.h $(DESTDIR)$(PREFIX)/include/ranvier.h
	install -m 644 $(LIB) $(DESTDIR)$(PREFIX)/lib/libranvier.a

clean:
	rm -rf build

define HELP
make                  build/ranvier and $(notdir $(LIB))
make lib              the library alone
make test             all unit tests (under a minute); TESTS='data_* pipeline_run': these alone
make test-long        the same with longer loops (ten minutes); make soak: in full
make lint             format, include law, length, static analysis
make cuda             ranvier_cuda.so beside the program: GPUs (CUDA=DIR, SM=90)
make emu              ranvier_emu.so: the same kernels on an emulated GPU (--device emu:0,1)
make test-emu         tests of the kernels and of the emulator
make golden DIR=F     replay the reference vectors of a folder (default tests/golden)
make bench            a step's time and memory; PEERS=python: beside the Python libraries
make bench-kernels    every op against what the machine can do
make bench-pipe       stages against one device, step by step in turn
make bench-delay      what corrections of delayed gradients cost, as a share of a step
make install          PREFIX=/usr/local DESTDIR=: program, ranvier.h, libranvier.a
make clean            remove build/

SAN=address|thread|undefined   sanitizer build         HDF5=0   without HDF5 (no model files)
FAULTS=1   failing allocations and writes for tests    DNNL=0   without oneDNN (slower)
CAIRO=0   without cairo (no pictures)
CC=clang   another compiler      V=1   show commands
endef
help:
	$(info $(HELP))@:

-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
