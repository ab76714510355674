//! Every field of a generation request, and what becomes of it.

use DefaultStage::{AdaptiveP, Dry, Mirostat, Penalties, Rules, Sampler};
use Meaning::{Alias, Ignored, Only, Read, Stage};

/// Which route a request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
}

/// A stage that the fields of a request can put into the default chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefaultStage {
    Rules,
    Penalties,
    Dry,
    Grammar,
    Sampler,
    Mirostat,
    AdaptiveP,
}

impl DefaultStage {
    /// Name of its plugin.
    pub(super) fn plugin(self) -> &'static str {
        match self {
            Rules => "rules",
            Penalties => "penalties",
            Dry => "dry",
            Self::Grammar => "grammar",
            Sampler => "sampler",
            Mirostat => "mirostat",
            AdaptiveP => "adaptive-p",
        }
    }

    /// Whether it is one of those of which a chain has one.
    pub(super) fn is_sampler(self) -> bool {
        matches!(self, Sampler | Mirostat | AdaptiveP)
    }
}

/// What the server does with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Read by name in `request`, `chat` or `completions`.
    Read,
    /// Passed to this stage as a parameter, which the plugin's schema judges.
    Stage(DefaultStage),
    /// Another name of a field.
    Alias(&'static str),
    /// Accepted at these values, which change nothing; others are refused.
    Only(&'static [&'static str]),
    /// Cannot change a token; named in `x-sluice-ignored`.
    Ignored,
}

/// A field's name and meaning.
pub(super) struct Field {
    pub(super) name: &'static str,
    /// The one endpoint that has the field, or both.
    endpoint: Option<Endpoint>,
    pub(super) meaning: Meaning,
}

const fn field(name: &'static str, meaning: Meaning) -> Field {
    Field {
        name,
        endpoint: None,
        meaning,
    }
}

const fn of(endpoint: Endpoint, name: &'static str) -> Field {
    Field {
        name,
        endpoint: Some(endpoint),
        meaning: Read,
    }
}

const FIELDS: &[Field] = &[
    of(Endpoint::Chat, "messages"),
    of(Endpoint::Chat, "chat_template_kwargs"),
    of(Endpoint::Chat, "tools"),
    of(Endpoint::Chat, "tool_choice"),
    of(Endpoint::Chat, "parallel_tool_calls"),
    of(Endpoint::Completions, "prompt"),
    field("model", Read),
    field("max_tokens", Read),
    field("n", Read),
    field("best_of", Read),
    field("stop", Read),
    field("stop_token_ids", Read),
    field("seed", Read),
    field("stream", Read),
    field("stream_options", Read),
    field("processors", Read),
    field("chain", Read),
    field("dialect", Read),
    field("explain", Read),
    field("logprobs", Read),
    of(Endpoint::Chat, "top_logprobs"),
    field("n_probs", Read),
    field("logprobs_mode", Read),
    field("echo", Read),
    // One constraint of the text.
    field("response_format", Read),
    field("structured_outputs", Read),
    field("guided_json", Read),
    field("guided_regex", Read),
    field("guided_choice", Read),
    field("guided_grammar", Read),
    // Parameters of the default chain.
    field("allowed_token_ids", Stage(Rules)),
    field("logit_bias", Stage(Rules)),
    field("bad_words", Stage(Rules)),
    field("min_tokens", Stage(Rules)),
    field("ignore_eos", Stage(Rules)),
    field("no_repeat_ngram_size", Stage(Rules)),
    field("repetition_penalty", Stage(Penalties)),
    field("repetition_context_size", Stage(Penalties)),
    field("presence_penalty", Stage(Penalties)),
    field("presence_context_size", Stage(Penalties)),
    field("frequency_penalty", Stage(Penalties)),
    field("frequency_context_size", Stage(Penalties)),
    field("temperature", Stage(Sampler)),
    field("top_k", Stage(Sampler)),
    field("top_p", Stage(Sampler)),
    field("min_p", Stage(Sampler)),
    field("xtc_probability", Stage(Sampler)),
    field("xtc_threshold", Stage(Sampler)),
    field("typical_p", Stage(Sampler)),
    field("top_n_sigma", Stage(Sampler)),
    field("epsilon_cutoff", Stage(Sampler)),
    field("eta_cutoff", Stage(Sampler)),
    field("top_a", Stage(Sampler)),
    field("smoothing_factor", Stage(Sampler)),
    field("smoothing_curve", Stage(Sampler)),
    field("dynatemp_range", Stage(Sampler)),
    field("dynatemp_exponent", Stage(Sampler)),
    field("min_keep", Stage(Sampler)),
    field("order", Stage(Sampler)),
    field("dry_multiplier", Stage(Dry)),
    field("dry_base", Stage(Dry)),
    field("dry_allowed_length", Stage(Dry)),
    field("dry_range", Stage(Dry)),
    field("dry_sequence_breakers", Stage(Dry)),
    field("mirostat", Stage(Mirostat)),
    field("mirostat_tau", Stage(Mirostat)),
    field("mirostat_eta", Stage(Mirostat)),
    field("adaptive_target", Stage(AdaptiveP)),
    field("adaptive_decay", Stage(AdaptiveP)),
    // Other names in use.
    field("max_completion_tokens", Alias("max_tokens")),
    field("n_predict", Alias("max_tokens")),
    field("repeat_penalty", Alias("repetition_penalty")),
    field("repeat_last_n", Alias("repetition_context_size")),
    field("min_tokens_to_keep", Alias("min_keep")),
    field("typ_p", Alias("typical_p")),
    field("nsigma", Alias("top_n_sigma")),
    field("dry_penalty_last_n", Alias("dry_range")),
    field("mirostat_mode", Alias("mirostat")),
    field("samplers", Alias("order")),
    field("sampler_priority", Alias("order")),
    // Known, and honoured at the value that changes nothing.
    field("suffix", Only(&["\"\""])),
    field("functions", Only(&["\"none\"", "[]"])),
    field("function_call", Only(&["\"none\""])),
    field("modalities", Only(&["[\"text\"]"])),
    field("audio", Only(&[])),
    field("use_beam_search", Only(&["false"])),
    field("length_penalty", Only(&["1"])),
    field("skip_special_tokens", Only(&["true"])),
    field("include_stop_str_in_output", Only(&["false"])),
    // Cannot change a token.
    field("user", Ignored),
    field("metadata", Ignored),
    field("store", Ignored),
    field("service_tier", Ignored),
    field("safety_identifier", Ignored),
    field("prompt_cache_key", Ignored),
    field("prompt_cache_options", Ignored),
    field("prompt_cache_retention", Ignored),
    field("prediction", Ignored),
    field("moderation", Ignored),
    field("reasoning_effort", Ignored),
    field("verbosity", Ignored),
    field("cache_prompt", Ignored),
    field("request_id", Ignored),
    field("priority", Ignored),
];

/// The fields of an endpoint.
pub(super) fn fields_of(endpoint: Endpoint) -> impl Iterator<Item = &'static Field> {
    FIELDS
        .iter()
        .filter(move |field| field.endpoint.is_none_or(|only| only == endpoint))
}

/// The stage of the default chain that takes a field as its parameter.
pub(super) fn stage_of(name: &str) -> Option<DefaultStage> {
    FIELDS
        .iter()
        .find(|field| field.name == name)
        .and_then(|field| match field.meaning {
            Stage(stage) => Some(stage),
            _ => None,
        })
}

/// The field of this name.
pub(super) fn find(name: &str, endpoint: Endpoint) -> Option<&'static Field> {
    fields_of(endpoint).find(|field| field.name == name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn names_are_distinct_and_aliases_lead_to_fields() {
        for (index, field) in FIELDS.iter().enumerate() {
            assert!(
                FIELDS[..index].iter().all(|other| other.name != field.name),
                "{}",
                field.name
            );
            if let Alias(name) = field.meaning {
                let target = FIELDS.iter().find(|field| field.name == name).unwrap();
                assert!(!matches!(target.meaning, Alias(_)), "{name}");
            }
            if let Only(neutral) = field.meaning {
                for text in neutral {
                    serde_json::from_str::<Value>(text).unwrap();
                }
            }
        }
    }
}
