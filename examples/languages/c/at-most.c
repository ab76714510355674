// Bans a token once it has been generated so many times.
#include "token_plugin.h"

#include <stdlib.h>
#include <string.h>

static const char SCHEMA[] =
    "{\"type\": \"object\","
    " \"properties\": {\"times\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 1000000}},"
    " \"required\": [\"times\"],"
    " \"additionalProperties\": false}";

// The names that wit-bindgen makes, without their common beginning.
#define NAME(name) exports_sluice_sampling_token_processor_##name
typedef NAME(sequence_t) sequence_t;

struct NAME(sequence_t) {
    uint32_t times;
    // How often each token of the vocabulary was generated.
    uint32_t *counts;
    uint32_t *used_up;
    size_t n_used_up;
};

void exports_sluice_sampling_plugin_describe(exports_sluice_sampling_plugin_description_t *said) {
    token_plugin_string_dup(&said->name, "at-most-c");
    token_plugin_string_dup(&said->version, "0.1.0");
    token_plugin_string_dup(&said->summary,
                            "Bans a token once it has been generated so many times.");
    token_plugin_string_dup(&said->params_schema, SCHEMA);
}

void exports_sluice_sampling_plugin_prepare(void) {}

// Zeroed memory. Address zero is as good as any other here, so that nobody else
// notices when there is none.
static void *allocate(size_t n, size_t size) {
    void *memory = calloc(n, size);
    if (!memory) abort();
    return memory;
}

// The only parameter: valid by the schema, the first digits are its value.
static uint32_t times(const token_plugin_string_t *params) {
    char *text = allocate(params->len + 1, 1);
    memcpy(text, params->ptr, params->len);
    // Large whole numbers may be written as 1e6.
    uint32_t value = strtod(text + strcspn(text, "0123456789"), NULL);
    free(text);
    return value;
}

static uint32_t vocabulary_size(void) {
    sluice_sampling_types_model_info_t model;
    sluice_sampling_vocabulary_model(&model);
    uint32_t size = model.vocabulary_size;
    sluice_sampling_types_model_info_free(&model);
    return size;
}

bool NAME(static_sequence_open)(NAME(sequence_info_t) *info, NAME(own_sequence_t) *opened,
                                NAME(open_error_t) *error) {
    (void)error;
    uint32_t size = vocabulary_size();
    sequence_t *sequence = allocate(1, sizeof *sequence);
    sequence->times = times(&info->params);
    sequence->counts = allocate(size, sizeof *sequence->counts);
    sequence->used_up = allocate(size, sizeof *sequence->used_up);
    *opened = NAME(sequence_new)(sequence);
    // What comes in belongs to who is called.
    NAME(sequence_info_free)(info);
    return true;
}

void NAME(sequence_destructor)(sequence_t *sequence) {
    free(sequence->counts);
    free(sequence->used_up);
    free(sequence);
}

bool NAME(method_sequence_plan)(sequence_t *self, NAME(list_token_id_t) *accepted,
                                token_plugin_string_t *error) {
    (void)error;
    for (size_t i = 0; i < accepted->len; i++) {
        uint32_t id = accepted->ptr[i];
        if (++self->counts[id] == self->times) self->used_up[self->n_used_up++] = id;
    }
    sluice_sampling_edits_list_token_id_t used_up = {self->used_up, self->n_used_up};
    sluice_sampling_edits_deny(&used_up);
    NAME(list_token_id_free)(accepted);
    return true;
}
