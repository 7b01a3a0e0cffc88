/* ranvier check FILE|RUN|CONFIG: silent damage becomes an exit code. */
#include "pipeline/cmd.h"

rv_code rv_cmd_check(const rv_arguments *arguments) {
    rv_status status = RV_OK;
    char *text = NULL;
    TRY((rv_status)rv_check(arguments->operand[0], arguments->sets, arguments->set_count, &text));
    TRY(rv_print_text(text, arguments->json));
out:
    rv_text_free(text);
    return status;
}
