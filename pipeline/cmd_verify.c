/* ranvier verify CONFIG: does the pipeline give the bits of one device? */
#include "pipeline/cmd.h"

/* Nine digits tell any two floats apart. Loss and norm belong to no layer. */
static void print_difference(const json_t *first) {
    const char *layer = json_string_value(json_object_get(first, "layer"));
    printf("different: step %lld, %s",
           (long long)json_integer_value(json_object_get(first, "step")),
           json_string_value(json_object_get(first, "what")));
    if (layer)
        printf(" of layer \"%s\", %s[%lld]", layer,
               json_string_value(json_object_get(first, "tensor")),
               (long long)json_integer_value(json_object_get(first, "index")));
    printf(": %.9g on one device, %.9g in the pipeline\n",
           json_number_value(json_object_get(first, "one_device")),
           json_number_value(json_object_get(first, "pipeline")));
}

static long long count(const json_t *root, const char *key) {
    return (long long)json_integer_value(json_object_get(root, key));
}

/* A difference is a result: it is printed, and the code handed on without a second message. */
rv_code rv_cmd_verify(const rv_arguments *arguments) {
    rv_status status = RV_OK;
    char *text = NULL;
    json_t *root = NULL;
    const rv_plan_options options = {
        .struct_size = sizeof options,
        .config = arguments->operand[0],
        .sets = arguments->sets,
        .set_count = arguments->set_count,
        .isa = arguments->isa,
        .threads = arguments->threads,
        .steps = arguments->steps,
        .schedule_file = arguments->schedule_file,
        .scratch = arguments->scratch,
    };
    rv_code code = rv_verify(&options, &text);
    if (!text) return code;
    if (arguments->json) {
        puts(text);
    } else {
        root = json_loads(text, 0, NULL);
        if (!root) FAIL(RV_MEMORY, "out of memory for the answer");
        if (code == RV_OK)
            printf("identical: %lld steps, %lld numbers; %s, %lld stages, %lld micro-batches, %lld "
                   "chunks, %lld slots\n",
                   count(root, "steps"), count(root, "compared"),
                   json_string_value(json_object_get(root, "schedule")), count(root, "stages"),
                   count(root, "micro_batches"), count(root, "chunks"), count(root, "slots"));
        else
            print_difference(json_object_get(root, "first_difference"));
    }
    if (code != RV_OK) status = rv_fail((rv_status)code, "%s", "");
out:
    json_decref(root);
    rv_text_free(text);
    return status == RV_OK ? code : (rv_code)status;
}
