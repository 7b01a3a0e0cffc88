/* Reading the objects of JSON files. */
#include "tests/golden.h"
#include <jansson.h>

static const json_t *value_of(golden_case *c, const json_t *of, const char *key) {
    const json_t *value = json_object_get(of ? of : c->json, key);
    if (!value) golden_fail(c, "%s: missing", key);
    return value;
}

double golden_json_number(golden_case *c, const json_t *of, const char *key) {
    const json_t *value = value_of(c, of, key);
    if (value && !json_is_number(value)) golden_fail(c, "%s: no number", key);
    return json_number_value(value);
}

int golden_json_int(golden_case *c, const json_t *of, const char *key) {
    double value = golden_json_number(c, of, key);
    if (value == floor(value) && fabs(value) <= INT32_MAX) return (int)value;
    golden_fail(c, "%s: no whole number", key);
    return 0;
}

const double *golden_json_numbers(golden_case *c, const json_t *of, const char *key, int n) {
    const json_t *value = value_of(c, of, key);
    double *numbers = golden_memory(c, n > 0 ? (size_t)n : 1, sizeof *numbers);
    bool one = json_is_number(value);
    if (value && !one && json_array_size(value) != (size_t)n)
        golden_fail(c, "%s: %zu numbers, not %d", key, json_array_size(value), n);
    for (int i = 0; i < n && !c->failed; i++) {
        const json_t *it = one ? value : json_array_get(value, (size_t)i);
        if (!json_is_number(it)) golden_fail(c, "%s: no number at %d", key, i);
        numbers[i] = json_number_value(it);
    }
    return numbers;
}

const int *golden_json_ints(golden_case *c, const json_t *of, const char *key, int n) {
    const double *numbers = golden_json_numbers(c, of, key, n);
    int *ints = golden_memory(c, n > 0 ? (size_t)n : 1, sizeof *ints);
    for (int i = 0; i < n; i++)
        ints[i] = (int)numbers[i];
    return ints;
}
