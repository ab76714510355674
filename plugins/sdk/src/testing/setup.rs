use std::{collections::BTreeMap, rc::Rc};

use serde_json::Value;
use sluice_contract::{
    cases::{self, CONTEXT_LENGTH, Case, Failure, INVALID_PARAMS, MAX_TOKENS},
    phase::Phase,
};

use super::{
    Exported, Sequence,
    host::{self, Host},
};
use crate::{ModelInfo, OpenError, SequenceInfo, TokenId, glue};

/// How a sequence opens: a small vocabulary, and what a request asks for.
#[derive(Clone, Debug)]
pub struct Setup {
    vocabulary: Vocabulary,
    params: String,
    info: SequenceInfo,
    seed: i64,
    choice: u32,
}

/// A made vocabulary.
#[derive(Clone, Debug, Default)]
pub(super) struct Vocabulary {
    pub(super) texts: Vec<Vec<u8>>,
    pub(super) special: Vec<(TokenId, String)>,
    pub(super) end_of_sequence: Vec<TokenId>,
}

impl Vocabulary {
    pub(super) fn size(&self) -> u32 {
        self.texts.len() as u32
    }

    pub(super) fn model(&self) -> ModelInfo {
        ModelInfo {
            vocabulary_size: self.size(),
            tokenizer_size: self.size(),
            end_of_sequence: self.end_of_sequence.clone(),
            context_length: CONTEXT_LENGTH,
        }
    }

    /// Byte by byte: the first token of each single byte, where there is one.
    pub(super) fn encode(&self, text: &str) -> Vec<TokenId> {
        let mut singles = BTreeMap::new();
        for (id, token) in (0..).zip(&self.texts) {
            if let [byte] = token[..] {
                singles.entry(byte).or_insert(id);
            }
        }
        text.bytes()
            .filter_map(|byte| singles.get(&byte).copied())
            .collect()
    }
}

impl Setup {
    /// A vocabulary of so many tokens, each of which stands for its own id as a
    /// decimal number.
    pub fn new(vocabulary_size: u32) -> Self {
        Self::of_texts((0..vocabulary_size).map(|id| id.to_string()))
    }

    /// A vocabulary of tokens that stand for these texts. Text is tokenised byte
    /// by byte, in the tokens of a single byte.
    pub fn of_texts<T: Into<Vec<u8>>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self {
            vocabulary: Vocabulary {
                texts: texts.into_iter().map(Into::into).collect(),
                ..Vocabulary::default()
            },
            params: "{}".to_owned(),
            info: SequenceInfo {
                prompt: Vec::new(),
                max_tokens: MAX_TOKENS,
                end_ids: Vec::new(),
            },
            seed: 0,
            choice: 0,
        }
    }

    pub(super) fn of_case(case: &Case) -> Self {
        Self::of_texts(case.texts())
            .params(Value::from(case.params.clone()).to_string())
            .prompt(case.prompt_tokens.as_slice())
            .end_ids(case.end_ids.as_slice())
            .seed(case.seed)
    }

    /// The plugin's parameters, as JSON; none by default.
    #[must_use]
    pub fn params(mut self, json: impl Into<String>) -> Self {
        self.params = json.into();
        self
    }

    /// The tokens that the model is conditioned on; none by default.
    #[must_use]
    pub fn prompt(mut self, ids: impl Into<Vec<TokenId>>) -> Self {
        self.info.prompt = ids.into();
        self
    }

    /// What ends the sequence, by the model and by the request; nothing by
    /// default.
    #[must_use]
    pub fn end_ids(mut self, ids: impl Into<Vec<TokenId>>) -> Self {
        self.info.end_ids = ids.into();
        self.vocabulary.end_of_sequence = self.info.end_ids.clone();
        self
    }

    /// The most tokens to generate; 4096 by default.
    #[must_use]
    pub fn max_tokens(mut self, n: u32) -> Self {
        self.info.max_tokens = n;
        self
    }

    /// Names a token, as `</think>` names one. It stands for its text as it did.
    #[must_use]
    pub fn special_token(mut self, id: TokenId, name: impl Into<String>) -> Self {
        self.vocabulary.special.push((id, name.into()));
        self
    }

    /// The request's seed; 0 by default.
    #[must_use]
    pub fn seed(mut self, seed: i64) -> Self {
        self.seed = seed;
        self
    }

    /// The choice's index among those of its request; 0 by default.
    #[must_use]
    pub fn choice(mut self, index: u32) -> Self {
        self.choice = index;
        self
    }

    /// Prepares the plugin and opens a sequence, as a server does: parameters
    /// are held against the [schema](crate::schema()) first.
    ///
    /// # Errors
    /// Of the kind `invalid_params` where the schema or the plugin refuses the
    /// parameters, else of the kind of a fault.
    pub fn open<P: Exported>(&self) -> Result<Sequence<P>, Failure> {
        let params: Value = serde_json::from_str(&self.params)
            .map_err(|error| Failure::new(INVALID_PARAMS, format!("they are no JSON: {error}")))?;
        validate(&crate::schema::<P::Params>(), &params)?;
        let vocabulary = Rc::new(self.vocabulary.clone());
        let lane = match P::KIND {
            cases::Kind::Sampler => 0,
            _ => sluice_contract::chance::lane(P::describe().name),
        };
        let mut host = Host::new(vocabulary, self.seed, self.choice, lane);
        host::call(&mut host, Phase::Prepare, P::prepare)?;
        let info = self.info.clone();
        let opened = host::call(&mut host, Phase::Open, || {
            glue::open::<P>(&self.params, info)
        })?;
        match opened {
            Ok(plugin) => Ok(Sequence::new(plugin, host)),
            Err(OpenError::InvalidParams(message)) => Err(Failure::new(INVALID_PARAMS, message)),
            Err(OpenError::Failed(message)) => Err(Failure::new("open", message)),
        }
    }
}

/// Checks parameters as a server does.
fn validate(schema: &Value, params: &Value) -> Result<(), Failure> {
    let invalid = |message: String| Failure::new(INVALID_PARAMS, message);
    let validator = jsonschema::draft202012::new(schema)
        .map_err(|error| invalid(format!("the schema of the params is not valid: {error}")))?;
    validator.validate(params).map_err(|error| {
        let at = error.instance_path().to_string();
        invalid(format!("at `{at}`: {error}"))
    })
}
