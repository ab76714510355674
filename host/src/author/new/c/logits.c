// A floor: tokens whose logit lies more than `distance` below the best one are
// banned.
#include "plugin.h"

#include <math.h>

// The state of one sequence.
struct NAME(sequence_t) {
    // Infinite: off.
    float distance;
};

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
                                   {{bindings}}_option_list_f32_t *new_row,
                                   {{bindings}}_string_t *error) {
    (void)error;
    // None: the edits say what changes.
    new_row->is_some = false;
    NAME(list_token_id_free)(accepted);
    if (isinf(self->distance)) return true;
    {{bindings}}_list_f32_t row;
    sluice_sampling_logits_row(&row);
    uint32_t *ids = allocate(row.len, sizeof *ids);
    sluice_sampling_edits_list_token_id_t low = {ids, too_low(row.ptr, row.len, self->distance, ids)};
    sluice_sampling_edits_deny(&low);
    free(ids);
    {{bindings}}_list_f32_free(&row);
    return true;
}
