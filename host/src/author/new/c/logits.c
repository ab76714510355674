// A floor: tokens whose logit lies more than `distance` below the best one are
// banned.
#include "logits_plugin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char SCHEMA[] =
    "{\"type\": \"object\","
    " \"properties\": {"
    "   \"distance\": {\"type\": \"number\", \"minimum\": 0, \"maximum\": 1000}},"
    " \"additionalProperties\": false}";

// The names that wit-bindgen makes, without their common beginning.
#define NAME(name) exports_sluice_sampling_logits_processor_##name
typedef NAME(sequence_t) sequence_t;

// The state of one sequence.
struct NAME(sequence_t) {
    // Infinite: off.
    float distance;
};

void exports_sluice_sampling_plugin_describe(exports_sluice_sampling_plugin_description_t *said) {
    logits_plugin_string_dup(&said->name, "{{name}}");
    logits_plugin_string_dup(&said->version, "0.1.0");
    logits_plugin_string_dup(&said->summary, "Bans tokens far below the best one.");
    logits_plugin_string_dup(&said->params_schema, SCHEMA);
}

void exports_sluice_sampling_plugin_prepare(void) {}

// Zeroed memory. Address zero is as good as any other here, so that nobody else
// notices when there is none.
static void *allocate(size_t n, size_t size) {
    void *memory = calloc(n, size);
    if (!memory) abort();
    return memory;
}

// A number among the parameters, by its name in quotes. They are valid by the
// schema, a flat object of numbers, so nothing else can look like the name.
static double number(const logits_plugin_string_t *params, const char *name, double otherwise) {
    char *text = allocate(params->len + 1, 1);
    memcpy(text, params->ptr, params->len);
    const char *found = strstr(text, name);
    double value = otherwise;
    if (found) {
        found += strlen(name);
        found += strspn(found, " \t\r\n:");
        // `null` is as absent.
        if (*found != 'n') value = strtod(found, NULL);
    }
    free(text);
    return value;
}

bool NAME(static_sequence_open)(NAME(sequence_info_t) *info, NAME(own_sequence_t) *opened,
                                NAME(open_error_t) *error) {
    (void)error;
    sequence_t *sequence = allocate(1, sizeof *sequence);
    sequence->distance = number(&info->params, "\"distance\"", INFINITY);
    *opened = NAME(sequence_new)(sequence);
    // What comes in belongs to who is called.
    NAME(sequence_info_free)(info);
    return true;
}

void NAME(sequence_destructor)(sequence_t *sequence) { free(sequence); }

// Writes the ids that are too far below the best logit, and returns how many.
static size_t too_low(const float *row, size_t length, float distance, uint32_t *ids) {
    float best = -INFINITY;
    for (size_t id = 0; id < length; id++) {
        if (row[id] > best) best = row[id];
    }
    size_t n = 0;
    for (size_t id = 0; id < length; id++) {
        if (row[id] < best - distance) ids[n++] = id;
    }
    return n;
}

bool NAME(method_sequence_process)(sequence_t *self, NAME(list_token_id_t) *accepted,
                                   logits_plugin_option_list_f32_t *new_row,
                                   logits_plugin_string_t *error) {
    (void)error;
    // None: the edits say what changes.
    new_row->is_some = false;
    NAME(list_token_id_free)(accepted);
    if (isinf(self->distance)) return true;
    logits_plugin_list_f32_t row;
    sluice_sampling_logits_row(&row);
    uint32_t *ids = allocate(row.len, sizeof *ids);
    sluice_sampling_edits_list_token_id_t low = {ids, too_low(row.ptr, row.len, self->distance, ids)};
    sluice_sampling_edits_deny(&low);
    free(ids);
    logits_plugin_list_f32_free(&row);
    return true;
}
