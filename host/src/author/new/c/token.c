// A penalty that grows: each time a token was generated, its logit drops by
// `penalty` more.
#include "plugin.h"

// The state of one sequence. It follows from the accepted tokens alone, however
// they are split over calls.
struct NAME(sequence_t) {
    float penalty;
    // How often each token of the vocabulary was generated.
    uint32_t *counts;
    // Those that were, in the order of their first time, and what is added to
    // their logits.
    uint32_t *ids;
    float *values;
    size_t n_ids;
};

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
    sequence->penalty = number(&info->params, "\"penalty\"", 0);
    sequence->counts = allocate(size, sizeof *sequence->counts);
    sequence->ids = allocate(size, sizeof *sequence->ids);
    sequence->values = allocate(size, sizeof *sequence->values);
    *opened = NAME(sequence_new)(sequence);
    // What comes in belongs to who is called.
    NAME(sequence_info_free)(info);
    return true;
}

void NAME(sequence_destructor)(sequence_t *sequence) {
    free(sequence->counts);
    free(sequence->ids);
    free(sequence->values);
    free(sequence);
}

bool NAME(method_sequence_plan)(sequence_t *self, NAME(list_token_id_t) *accepted,
                                {{bindings}}_string_t *error) {
    (void)error;
    for (size_t i = 0; i < accepted->len; i++) {
        uint32_t id = accepted->ptr[i];
        if (self->counts[id]++ == 0) self->ids[self->n_ids++] = id;
    }
    for (size_t i = 0; i < self->n_ids; i++) {
        self->values[i] = -self->penalty * self->counts[self->ids[i]];
    }
    sluice_sampling_edits_list_token_id_t ids = {self->ids, self->n_ids};
    {{bindings}}_list_f32_t values = {self->values, self->n_ids};
    sluice_sampling_edits_add(&ids, &values);
    NAME(list_token_id_free)(accepted);
    return true;
}
