// Draws among the `k` best tokens, by their probabilities.
#include "plugin.h"

#include <math.h>

// The state of one sequence.
struct NAME(sequence_t) {
    uint32_t k;
};

bool NAME(static_sequence_open)(NAME(sequence_info_t) *info, NAME(own_sequence_t) *opened,
                                NAME(open_error_t) *error) {
    (void)error;
    sequence_t *sequence = allocate(1, sizeof *sequence);
    sequence->k = number(&info->params, "\"k\"", 1);
    *opened = NAME(sequence_new)(sequence);
    // What comes in belongs to who is called.
    NAME(sequence_info_free)(info);
    return true;
}

void NAME(sequence_destructor)(sequence_t *sequence) { free(sequence); }

// The index among logits, the best first, at `u` of their sum: the inverse of
// the cumulative distribution.
static size_t draw(const float *logits, size_t n, double u) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - logits[0]);
    double left = u * sum;
    for (size_t i = 0; i < n; i++) {
        left -= exp((double)logits[i] - logits[0]);
        if (left < 0) return i;
    }
    return n - 1;
}

// Evenly from 0 to below 1, the same for the same seed, choice and position.
static double uniform(uint32_t n) {
    return (double)(sluice_sampling_random_bits(n) >> 11) * 0x1p-53;
}

bool NAME(method_sequence_sample)(sequence_t *self, NAME(list_token_id_t) *accepted,
                                  NAME(token_id_t) *token, {{bindings}}_string_t *error) {
    (void)error;
    NAME(list_token_id_free)(accepted);
    sluice_sampling_logits_candidates_t best;
    sluice_sampling_logits_top(self->k, &best);
    *token = best.ids.ptr[draw(best.logits.ptr, best.logits.len, uniform(0))];
    sluice_sampling_logits_candidates_free(&best);
    return true;
}
