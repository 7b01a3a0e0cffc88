/* How many threads this process has, for tests that see all of them joined. */
#ifndef RV_TESTS_THREADS_H
#define RV_TESTS_THREADS_H

#include <dirent.h>

/* With the names . and .., which stand beside the threads': only differences count. */
static inline int threads_here(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    while (readdir(tasks))
        count++;
    assert_int_equal(closedir(tasks), 0);
    return count;
}

#endif
