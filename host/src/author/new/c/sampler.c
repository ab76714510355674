// Draws among the `k` best tokens, by their probabilities.
#include "sampler_plugin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char SCHEMA[] =
    "{\"type\": \"object\","
    " \"properties\": {"
    "   \"k\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 1000, \"default\": 1}},"
    " \"additionalProperties\": false}";

// The names that wit-bindgen makes, without their common beginning.
#define NAME(name) exports_sluice_sampling_sampler_##name
typedef NAME(sequence_t) sequence_t;

// The state of one sequence.
struct NAME(sequence_t) {
    uint32_t k;
};

void exports_sluice_sampling_plugin_describe(exports_sluice_sampling_plugin_description_t *said) {
    sampler_plugin_string_dup(&said->name, "{{name}}");
    sampler_plugin_string_dup(&said->version, "0.1.0");
    sampler_plugin_string_dup(&said->summary, "Draws among the best tokens.");
    sampler_plugin_string_dup(&said->params_schema, SCHEMA);
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
static double number(const sampler_plugin_string_t *params, const char *name, double otherwise) {
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
                                  NAME(token_id_t) *token, sampler_plugin_string_t *error) {
    (void)error;
    NAME(list_token_id_free)(accepted);
    sluice_sampling_logits_candidates_t best;
    sluice_sampling_logits_top(self->k, &best);
    *token = best.ids.ptr[draw(best.logits.ptr, best.logits.len, uniform(0))];
    sluice_sampling_logits_candidates_free(&best);
    return true;
}
