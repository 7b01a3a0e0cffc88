/* ranvier info FILE: all of it is rv_info's JSON, printed as it is or for people. */
#include "pipeline/cmd.h"

rv_code rv_cmd_info(const rv_arguments *arguments) {
    rv_status status = RV_OK;
    char *text = NULL;
    TRY((rv_status)rv_info(arguments->operand[0], &text));
    TRY(rv_print_text(text, arguments->json));
out:
    rv_text_free(text);
    return status;
}
