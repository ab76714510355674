//! A generation request, from bytes to sequences that are ready to run.
//!
//! Everything that can be refused is refused here, before anything joins the
//! batch. Blocking: reading tokenizes, and opening stages runs guest code.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::Service;
use super::body::parse_object;
use super::choice::{Choice, RequestDeadline, Showing};
use super::completions::Prompt;
use super::constraint::{self, Constraint};
use super::dialect::Dialect;
use super::errors::{ApiError, Code, shown};
use super::field_table::Endpoint;
use super::fields::{Fields, Given, cut};
use super::served_model::ServedModel;
use super::stages::RequestChain;
use super::tools::Tools;
use super::{chat, completions, logprobs};
use crate::engine::{EVENT_BUFFER, LogprobOptions, Submission, TokenId};
use crate::plugin::{
    Choices, OpenChain, OpeningBudget, Reserved, SequenceInfo, n_instances, n_instances_of_one,
};
use crate::text::StopStrings;

/// Most `stop_token_ids`: the engine compares every token with each.
const MAX_STOP_TOKEN_IDS: usize = 256;

/// A request whose every field was understood.
pub(super) struct Understood {
    terms: Terms,
    chain: RequestChain,
    prompts: Vec<Prompt>,
    /// Fields that cannot change a token.
    ignored: Vec<&'static str>,
}

/// A request that was understood and whose chains are open.
pub(super) struct Prepared {
    /// In the order of their index: prompt by prompt, `n` for each.
    pub(super) sequences: Vec<(Submission, Choice)>,
    /// Tokens of all prompts, each counted once.
    pub(super) prompt_tokens: usize,
    pub(super) seed: i64,
    pub(super) stream: Option<StreamOptions>,
    /// Whether the answer has logprobs.
    pub(super) logprobs: bool,
    /// Fields that cannot change a token.
    pub(super) ignored: Vec<&'static str>,
}

/// How a streamed answer looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamOptions {
    pub(super) include_usage: bool,
}

/// What a request says beside its prompt and its stages.
struct Terms {
    endpoint: Endpoint,
    n: usize,
    max_tokens: Option<i128>,
    /// What the client calls it.
    max_tokens_name: &'static str,
    echo: bool,
    explain: bool,
    logprobs: Option<LogprobOptions>,
    stop: Arc<StopStrings>,
    end_ids: Vec<TokenId>,
    seed: i64,
    stream: Option<StreamOptions>,
    tools: Option<Tools>,
}

/// Reads a body.
///
/// # Errors
/// The first fault found.
pub(super) fn read(
    service: &Service,
    endpoint: Endpoint,
    body: &[u8],
) -> Result<Understood, ApiError> {
    let mut fields = Fields::admit(parse_object(body)?, endpoint)?;
    check_model(fields.take("model").as_ref(), &service.model)?;
    let vocabulary_size = service.engine.model_info().vocabulary_size;
    let dialect = Dialect::read(&mut fields, vocabulary_size)?;
    let mut terms = Terms::read(&mut fields, endpoint, service)?;
    let template = service.model.template.as_ref();
    if endpoint == Endpoint::Chat {
        terms.tools = Tools::read(&mut fields, template)?;
    }
    let tools = terms.tools.as_ref();
    let constraint = read_constraint(&mut fields, tools)?;
    let registry = &service.registry;
    let constraint = constraint.as_ref();
    let chain = RequestChain::read(&mut fields, constraint, dialect, registry, vocabulary_size)?;
    let prompts = match endpoint {
        Endpoint::Chat => {
            let ids = chat::read_prompt(&mut fields, &service.model.tokenizer, template, tools)?;
            vec![Prompt { ids, text: None }]
        }
        Endpoint::Completions => {
            let given = fields.required("prompt")?;
            completions::read_prompts(&given, &service.model.tokenizer, service.limits.choices)?
        }
    };
    check_size(service, &chain, &terms, prompts.len())?;
    check_answer(service, &chain, &terms, &prompts)?;
    let mut ignored = fields.finish()?;
    if tools.is_some_and(Tools::ignores_strict) {
        ignored.push("tools.function.strict");
    }
    Ok(Understood {
        terms,
        chain,
        prompts,
        ignored,
    })
}

impl Understood {
    /// Opens the chains that it asks for, in one budget for all prompts.
    ///
    /// # Errors
    /// When one of them cannot be opened, or not before the deadline.
    pub(super) fn open(
        self,
        service: &Service,
        deadline: RequestDeadline,
    ) -> Result<Prepared, ApiError> {
        let Self {
            terms,
            chain,
            prompts,
            ignored,
        } = self;
        let prompt_tokens = prompts.iter().map(|prompt| prompt.ids.len()).sum();
        let mut budget = service.runtime.opening_budget(deadline.end);
        let mut sequences = Vec::new();
        let opened = service
            .runtime
            .reserve(chain.stages(), terms.n, prompts.len(), &mut budget)
            .map_err(|error| chain.open_error(error))
            .and_then(|mut reserved| {
                for prompt in prompts {
                    let opened = open(service, &chain, &terms, prompt, &mut reserved, &mut budget);
                    sequences.extend(opened?);
                }
                Ok(())
            });
        // Whatever it came to: the guests had no more time.
        opened.map_err(|error| deadline.or_exceeded(error))?;
        Ok(Prepared {
            sequences,
            prompt_tokens,
            seed: terms.seed,
            stream: terms.stream,
            logprobs: terms.logprobs.is_some(),
            ignored,
        })
    }
}

/// Takes the form that the text must have, given as such or by a call that is
/// forced.
fn read_constraint(
    fields: &mut Fields,
    tools: Option<&Tools>,
) -> Result<Option<Constraint>, ApiError> {
    match (tools, constraint::read(fields)?) {
        (Some(_), Some(Constraint { field, .. })) => {
            let message = format!(
                "`{field}` gives the text a form in which no call could stand: leave it or \
                 `tools` out"
            );
            Err(ApiError::of(Code::ConflictingFields, field, message))
        }
        (Some(tools), None) => Ok(tools.forced.clone()),
        (None, constraint) => Ok(constraint),
    }
}

/// Refuses what could never run, however idle the server is.
fn check_size(
    service: &Service,
    chain: &RequestChain,
    terms: &Terms,
    n_prompts: usize,
) -> Result<(), ApiError> {
    let n = terms.n;
    let most = service.limits.choices;
    if n_prompts * n > most {
        let message =
            format!("`n` is {n} for {n_prompts} prompts; a request has at most {most} choices");
        return Err(ApiError::of(Code::InvalidValue, "n", message));
    }
    let instances = n_prompts * n_instances(chain.stages(), n);
    let most = service.runtime.limits().max_instances;
    if instances > most as usize {
        let message = format!(
            "{n_prompts} prompts and {n} choices with {} stages need {instances} instances; there \
             are {most}",
            chain.stages().len()
        );
        let field = match terms.endpoint {
            Endpoint::Chat => "messages",
            Endpoint::Completions => "prompt",
        };
        return Err(ApiError::of(Code::InvalidValue, field, message));
    }
    let most = service.runtime.limits().max_instances_of_one;
    if let Some((plugin, instances)) = n_instances_of_one(chain.stages(), n)
        && n_prompts * instances > most as usize
    {
        let message = format!(
            "{n_prompts} prompts and {n} choices need {} instances of `{}`; one plugin has at \
             most {most}",
            n_prompts * instances,
            plugin.name
        );
        return Err(ApiError::of(Code::InvalidValue, "n", message));
    }
    Ok(())
}

/// What an explanation of a stage at one position counts as, in logprobs: its
/// figures, and some tokens that it moved.
const EXPLAINED: usize = 16;

/// Refuses an answer that could grow larger than the server keeps one whole. A
/// stream keeps nothing.
fn check_answer(
    service: &Service,
    chain: &RequestChain,
    terms: &Terms,
    prompts: &[Prompt],
) -> Result<(), ApiError> {
    let listed = terms.logprobs.map_or(0, |asked| asked.n_top as usize + 1);
    let explained = if terms.explain {
        EXPLAINED * chain.stages().len()
    } else {
        0
    };
    if terms.stream.is_some() || listed + explained == 0 {
        return Ok(());
    }
    let context_length = service.engine.model_info().context_length;
    let (mut n_values, mut longest) = (0_usize, 0);
    for prompt in prompts {
        let max_tokens = terms.max_tokens_after(&prompt.ids, context_length)?;
        longest = longest.max(max_tokens);
        let echoed = if terms.echo { prompt.ids.len() } else { 0 };
        let of_choice = (max_tokens as usize + echoed) * listed + max_tokens as usize * explained;
        n_values = n_values.saturating_add(terms.n.saturating_mul(of_choice));
    }
    let most = service.limits.answer_values;
    if n_values <= most {
        return Ok(());
    }
    let field = terms.max_tokens_name;
    let message = format!(
        "`{field}` allows {longest} tokens for each of {} choices; with {} values for each token, \
         logprobs and explanations, the answer could have {n_values}, and one that is not \
         streamed has at most {most}: ask for less, or set `stream`",
        prompts.len() * terms.n,
        listed + explained,
    );
    Err(ApiError::of(Code::InvalidValue, field, message))
}

/// Opens the `n` choices of one prompt. They are numbered within the prompt,
/// so that a prompt's answers do not depend on the ones sent along with it.
fn open(
    service: &Service,
    chain: &RequestChain,
    terms: &Terms,
    prompt: Prompt,
    reserved: &mut Reserved,
    budget: &mut OpeningBudget,
) -> Result<Vec<(Submission, Choice)>, ApiError> {
    let context_length = service.engine.model_info().context_length;
    let max_tokens = terms.max_tokens_after(&prompt.ids, context_length)?;
    let is_forced = terms.tools.as_ref().is_some_and(Tools::is_forced);
    let min_tokens = check_min_tokens(chain, max_tokens, is_forced)?;
    let vocabulary = service.model.tokenizer.vocabulary();
    let echo = terms.echo.then(|| prompt.echo(&service.model.tokenizer));
    let info = SequenceInfo {
        prompt: prompt.ids,
        max_tokens,
        end_ids: terms.end_ids.clone(),
    };
    let choices = Choices {
        n: terms.n as u32,
        seed: terms.seed,
        explain: terms.explain,
    };
    let (runtime, ids) = (&service.runtime, &service.model.vocabulary);
    let chains = runtime
        .open_within(ids, chain.stages(), &info, choices, reserved, budget)
        .map_err(|error| chain.open_error(error))?;
    let sequence = |(index, chain): (usize, OpenChain)| {
        let (events, receiver) = mpsc::channel(EVENT_BUFFER);
        let showing = Showing {
            vocabulary: vocabulary.clone(),
            stop: terms.stop.clone(),
            min_tokens,
            logprobs: terms.logprobs.is_some(),
            end_entry: terms.endpoint == Endpoint::Completions,
            echo: echo.clone(),
            is_first: index == 0,
            tools: terms.tools.as_ref().map(Tools::stream),
        };
        let choice = Choice::new(receiver, chain.report(), showing);
        let submission = Submission {
            prompt: info.prompt.clone(),
            max_tokens,
            end_ids: info.end_ids.clone(),
            chain: Box::new(chain),
            logprobs: terms.logprobs,
            events,
        };
        (submission, choice)
    };
    Ok(chains.into_iter().enumerate().map(sequence).collect())
}

impl Terms {
    fn read(fields: &mut Fields, endpoint: Endpoint, service: &Service) -> Result<Self, ApiError> {
        let echo = fields.boolean("echo")?.unwrap_or(false);
        if echo && endpoint == Endpoint::Chat {
            let message = "`echo` is true; only /v1/completions can show its prompt";
            return Err(ApiError::of(Code::UnsupportedField, "echo", message));
        }
        // Only a prompt that is shown makes an answer without a token.
        let fewest = i128::from(!echo);
        let n = fields
            .integer("n", 1..=service.limits.choices as i128)?
            .unwrap_or(1);
        let best_of = fields.integer("best_of", 1..=i128::MAX)?.unwrap_or(n);
        if best_of != n {
            let message = format!("`best_of` is {best_of} but `n` is {n}; they must be equal");
            return Err(ApiError::of(Code::UnsupportedField, "best_of", message));
        }
        let seeds = i128::from(i64::MIN)..=i128::from(i64::MAX);
        let max_tokens_name = fields.get("max_tokens");
        Ok(Self {
            max_tokens_name: max_tokens_name.map_or("max_tokens", |given| given.sent_as),
            endpoint,
            n: n as usize,
            max_tokens: fields.integer("max_tokens", fewest..=i128::MAX)?,
            echo,
            explain: fields.boolean("explain")?.unwrap_or(false),
            logprobs: logprobs::read(fields, endpoint, echo)?,
            stop: Arc::new(read_stop(fields.take("stop").as_ref())?),
            end_ids: read_end_ids(fields.take("stop_token_ids"), service)?,
            seed: fields
                .integer("seed", seeds)?
                .map_or_else(random_seed, |seed| seed as i64),
            stream: read_stream(fields)?,
            tools: None,
        })
    }

    /// The most tokens that may follow `prompt`.
    fn max_tokens_after(&self, prompt: &[TokenId], context_length: u32) -> Result<u32, ApiError> {
        let room = i128::from(context_length) - prompt.len() as i128;
        let wanted = i128::from(self.max_tokens != Some(0));
        if room < wanted {
            let message = format!(
                // Begins as OpenAI's does: clients tell the case by it.
                "this model's maximum context length is {context_length} tokens, but the prompt \
                 has {}; it may have at most {}",
                prompt.len(),
                context_length.saturating_sub(1)
            );
            return Err(ApiError::new(Code::ContextLengthExceeded, message));
        }
        Ok(self.max_tokens.map_or(room, |most| most.min(room)) as u32)
    }
}

fn check_model(given: Option<&Given>, loaded: &ServedModel) -> Result<(), ApiError> {
    let Some(given) = given else { return Ok(()) };
    match given.value.as_str() {
        None => Err(given.invalid("a model's name")),
        Some(name) if loaded.names().any(|own| own == name) => Ok(()),
        Some(_) => Err(loaded.unknown(&given.value)),
    }
}

fn check_min_tokens(
    chain: &RequestChain,
    max_tokens: u32,
    is_forced: bool,
) -> Result<usize, ApiError> {
    match chain.min_tokens() {
        None | Some((0, _)) => Ok(0),
        Some((_, name)) if is_forced => {
            let message = format!(
                "`{name}` cannot hold beside a `tool_choice` that forces a call, with whose end \
                 the text ends"
            );
            Err(ApiError::of(Code::ConflictingFields, name, message))
        }
        Some((min, _)) if min <= u64::from(max_tokens) => Ok(min as usize),
        Some((min, name)) => {
            let message =
                format!("`{name}` is {min}, more than the {max_tokens} tokens there may be");
            Err(ApiError::of(Code::ConflictingFields, name, message))
        }
    }
}

/// Reads `stop`: a string or a list of strings.
fn read_stop(given: Option<&Given>) -> Result<StopStrings, ApiError> {
    const EXPECTED: &str = "a string or a list of strings";
    let strings = match given {
        None => Vec::new(),
        Some(Given {
            value: Value::String(text),
            ..
        }) => vec![text.clone()],
        Some(given) => given
            .value
            .as_array()
            .ok_or_else(|| given.invalid(EXPECTED))?
            .iter()
            .map(|item| {
                item.as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| given.invalid(EXPECTED))
            })
            .collect::<Result<_, _>>()?,
    };
    StopStrings::new(strings)
        .map_err(|error| ApiError::of(Code::InvalidValue, "stop", error.to_string()))
}

/// Every id that ends a sequence: the model's and the request's, ascending.
fn read_end_ids(given: Option<Given>, service: &Service) -> Result<Vec<TokenId>, ApiError> {
    let mut ids = service.engine.model_info().end_of_sequence.clone();
    if let Some(given) = given {
        let items = given
            .value
            .as_array()
            .filter(|items| items.len() <= MAX_STOP_TOKEN_IDS)
            .ok_or_else(|| {
                given.invalid(format_args!(
                    "a list of at most {MAX_STOP_TOKEN_IDS} token ids"
                ))
            })?;
        let limit = service.model.tokenizer.size();
        for item in items {
            ids.push(completions::read_id(given.sent_as, item, limit)?);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Reads `stream` and `stream_options`.
fn read_stream(fields: &mut Fields) -> Result<Option<StreamOptions>, ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let Some(given) = fields.take("stream_options") else {
        return Ok(stream.then(StreamOptions::default));
    };
    if !stream {
        let message = "`stream_options` has no effect unless `stream` is true";
        return Err(ApiError::of(
            Code::ConflictingFields,
            "stream_options",
            message,
        ));
    }
    let object = given
        .value
        .as_object()
        .ok_or_else(|| given.invalid("an object"))?;
    read_stream_options(object).map(Some)
}

fn read_stream_options(object: &Map<String, Value>) -> Result<StreamOptions, ApiError> {
    let mut options = StreamOptions::default();
    for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        let path = format!("stream_options.{}", cut(key));
        match (key.as_str(), value) {
            ("include_usage", Value::Bool(include)) => options.include_usage = *include,
            ("include_usage", other) => {
                return Err(ApiError::invalid(&path, other, "true or false"));
            }
            // Random padding of chunks against observers of their length.
            ("include_obfuscation", Value::Bool(false)) => {}
            ("include_obfuscation", _) => {
                let message = format!("`{path}` is {}; only false is supported", shown(value));
                return Err(ApiError::of(Code::UnsupportedField, path, message));
            }
            _ => {
                let message = format!("there is no `{path}`; did you mean `include_usage`?");
                return Err(ApiError::of(Code::UnknownField, path, message));
            }
        }
    }
    Ok(options)
}

/// A seed below 2⁵³, which every JSON reader carries without loss when the
/// client sends it back.
fn random_seed() -> i64 {
    (Uuid::new_v4().as_u128() & ((1 << 53) - 1)) as i64
}
