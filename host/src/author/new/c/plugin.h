// What the plugin says of itself, and what it needs to read its parameters.
#pragma once

#include "{{bindings}}.h"

#include <stdlib.h>
#include <string.h>

static const char SCHEMA[] =
    "{\"type\": \"object\","
    " \"properties\": {"
    "   {{property_in_c}}},"
    " \"additionalProperties\": false}";

// The names that wit-bindgen makes, without their common beginning.
#define NAME(name) exports_sluice_sampling_{{module}}_##name
typedef NAME(sequence_t) sequence_t;

void exports_sluice_sampling_plugin_describe(exports_sluice_sampling_plugin_description_t *said) {
    {{bindings}}_string_dup(&said->name, "{{name}}");
    {{bindings}}_string_dup(&said->version, "0.1.0");
    {{bindings}}_string_dup(&said->summary, "{{summary}}");
    {{bindings}}_string_dup(&said->params_schema, SCHEMA);
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
static double number(const {{bindings}}_string_t *params, const char *name, double otherwise) {
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
