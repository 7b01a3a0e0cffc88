/*
 * One run of scripts/delay_study: delay_study RECIPE MODE CORRECTIONS [KEY=VALUE ...] trains the
 * recipe under the sequential oracle and prints one JSON object. Not a test.
 */
#include "tests/delayed.h"

int main(int count, char **words) {
    delayed_result result;
    if (count < 4) {
        fprintf(stderr, "delay_study RECIPE MODE|sync CORRECTIONS [KEY=VALUE ...]\n");
        return 64;
    }
    unsigned flush = rv_flush_set();
    rv_status status = delayed_run(words[1], (const char *const *)words + 4, count - 4, words[2],
                                   words[3], &result);
    rv_flush_restore(flush);
    if (status) {
        fprintf(stderr, "delay_study: %s\n", rv_error_get()->message);
        return 70;
    }
    printf("{\"test_accuracy\":%.6f,\"train_loss\":%.6f,\"updates\":%lld,\"seconds\":%.3f}\n",
           result.accuracy, result.train_loss, (long long)result.updates, result.seconds);
    return 0;
}
