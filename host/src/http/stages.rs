//! From a request's fields to the stages of its chain.

use serde_json::{Map, Value};

use super::constraint::Constraint;
use super::default_chain::{DefaultChain, Param, canonicalise};
use super::dialect::Dialect;
use super::errors::{ApiError, Code, shown};
use super::field_table::DefaultStage;
use super::fields::{Fields, Given, cut};
use crate::plugin::{
    Kind, OnFault, OpenError, ParamsError, Registry, StageRef, check_chain, stage_names,
};

/// Most stages of one request: each is an instance with memory of its own.
const MAX_STAGES: usize = 32;

/// The stages of a request, checked: known plugins in a valid order, with
/// parameters that their schemas accept.
pub(super) struct RequestChain {
    stages: Vec<StageRef>,
    origins: Vec<Origin>,
}

/// Which part of the request a stage comes from, to name it in errors.
#[derive(Clone)]
pub(super) enum Origin {
    /// A stage of the default chain, with the fields given for it.
    Default(DefaultStage, Vec<Given>),
    /// A field that stands for a stage as a whole, such as `response_format`.
    Field(&'static str),
    /// An entry of a list, such as `processors[0]`.
    Entry(String),
}

impl RequestChain {
    /// Reads `chain`, `processors` and every field of a default stage; the text
    /// follows the constraint.
    ///
    /// # Errors
    /// The first field that cannot be honoured.
    pub(super) fn read(
        fields: &mut Fields,
        constraint: Option<&Constraint>,
        dialect: &Dialect,
        registry: &Registry,
        vocabulary_size: u32,
    ) -> Result<Self, ApiError> {
        let replacement = fields.take("chain");
        let additions = fields.take("processors");
        let mut params = fields.take_stage_fields();
        for (_, given) in &mut params {
            canonicalise(given, vocabulary_size);
        }
        let chain = match replacement {
            Some(list) => {
                let beside = additions
                    .iter()
                    .chain(params.iter().map(|(_, given)| given));
                let beside = beside.map(|given| given.sent_as);
                let constraint = constraint.iter().map(|constraint| constraint.asked_by);
                Self::replaced(&list, beside.chain(constraint).next(), registry)?
            }
            None => Self::extended(additions.as_ref(), params, constraint, dialect, registry)?,
        };
        chain.check()?;
        Ok(chain)
    }

    /// `chain`: these stages and no others, so fields of the default chain
    /// would have no effect.
    fn replaced(
        list: &Given,
        beside: Option<&'static str>,
        registry: &Registry,
    ) -> Result<Self, ApiError> {
        if let Some(field) = beside {
            let message = format!(
                "`{field}` has no effect beside `chain`, which replaces the default stages: \
                 leave it out or give it to a stage of the chain"
            );
            return Err(ApiError::of(Code::ConflictingFields, field, message));
        }
        let entries = read_entries(list, registry)?;
        if entries.is_empty() {
            return Err(list.invalid("a list of stages that ends with a sampler"));
        }
        let (stages, origins) = entries.into_iter().unzip();
        Ok(Self { stages, origins })
    }

    /// The default chain of a dialect, with the stages of `processors` after
    /// the default ones of their kind. A sampler takes the place of the
    /// default one.
    fn extended(
        additions: Option<&Given>,
        params: Vec<Param>,
        constraint: Option<&Constraint>,
        dialect: &Dialect,
        registry: &Registry,
    ) -> Result<Self, ApiError> {
        let additions = match additions {
            Some(list) => read_entries(list, registry)?,
            None => Vec::new(),
        };
        let mut chain = Self {
            stages: Vec::new(),
            origins: Vec::new(),
        };
        let default = DefaultChain {
            params,
            dialect,
            registry,
        };
        for stage in dialect.processors {
            match (stage, constraint) {
                (DefaultStage::Grammar, Some(constraint)) => {
                    let plugin = default.plugin(stage)?;
                    let params = constraint.params.clone();
                    chain.push((
                        StageRef::new(plugin, params),
                        Origin::Field(constraint.field),
                    ));
                }
                (DefaultStage::Grammar, None) => {}
                (DefaultStage::Dry, _) if !default.is_on("dry_multiplier") => {
                    default.check_unused(stage)?;
                }
                _ => chain.push(default.stage(stage)?),
            }
        }
        for kind in [Kind::TokenProcessor, Kind::LogitsProcessor, Kind::Sampler] {
            let of_kind = additions
                .iter()
                .filter(|(stage, _)| stage.plugin.kind == kind);
            of_kind.cloned().for_each(|entry| chain.push(entry));
        }
        if chain
            .stages
            .iter()
            .all(|stage| stage.plugin.kind != Kind::Sampler)
        {
            chain.push(default.sampler()?);
        } else if let Some((_, given)) = default.params.iter().find(|(of, _)| of.is_sampler()) {
            let message = format!(
                "`{}` has no effect: `processors` replaces the default sampler",
                given.sent_as
            );
            return Err(ApiError::of(
                Code::ConflictingFields,
                given.sent_as,
                message,
            ));
        }
        Ok(chain)
    }

    fn push(&mut self, (stage, origin): (StageRef, Origin)) {
        self.stages.push(stage);
        self.origins.push(origin);
    }

    fn check(&self) -> Result<(), ApiError> {
        check_chain(&self.stages).map_err(|error| {
            let origin = error.index().and_then(|index| self.origins.get(index));
            let param = origin.map(Origin::name);
            ApiError {
                param,
                ..ApiError::new(Code::InvalidChain, error.to_string())
            }
        })?;
        for (stage, origin) in self.stages.iter().zip(&self.origins) {
            origin.check_params(stage)?;
        }
        Ok(())
    }

    /// The stages, in order.
    pub(super) fn stages(&self) -> &[StageRef] {
        &self.stages
    }

    /// Fewest tokens before an end, and the name by which the client set it.
    /// A `rules` stage may stand anywhere in the chain, also more than once.
    pub(super) fn min_tokens(&self) -> Option<(u64, String)> {
        self.stages
            .iter()
            .zip(&self.origins)
            .filter(|(stage, _)| stage.plugin.name == DefaultStage::Rules.plugin())
            .filter_map(|(stage, origin)| {
                let min = stage.params.get("min_tokens")?.as_u64()?;
                let name = match origin {
                    Origin::Entry(name) => format!("{name}.params.min_tokens"),
                    Origin::Default(..) | Origin::Field(_) => "min_tokens".to_owned(),
                };
                Some((min, name))
            })
            .max_by_key(|(min, _)| *min)
    }

    /// Why the chain could not be opened, for the client.
    pub(super) fn open_error(&self, error: OpenError) -> ApiError {
        match error {
            OpenError::Chain(error) => ApiError::new(Code::InvalidChain, error.to_string()),
            OpenError::InvalidParams { stage, message } => self.invalid_params(&stage, &message),
            OpenError::Full { message } => ApiError::new(Code::Overloaded, message),
            OpenError::Disabled { .. } => ApiError::new(Code::PluginDisabled, error.to_string()),
            OpenError::Fault(fault) => match self.field_of(&fault.stage) {
                // It was too much for the stage that the field stands for; with no
                // time left to it, others were.
                Some(field) if fault.kind != "late" => {
                    ApiError::of(Code::InvalidValue, field, fault.to_string())
                }
                _ => ApiError::new(Code::PluginError, fault.to_string()),
            },
        }
    }

    /// The field that stands for the stage of this name as a whole.
    fn field_of(&self, stage: &str) -> Option<&'static str> {
        let mut stages = self.labels().zip(&self.origins);
        stages.find_map(|(label, origin)| match origin {
            Origin::Field(field) if label == stage => Some(*field),
            _ => None,
        })
    }

    /// A plugin's own complaint about its parameters, which passed the schema.
    fn invalid_params(&self, stage: &str, message: &str) -> ApiError {
        let origin = self
            .labels()
            .zip(&self.origins)
            .find(|(label, _)| label == stage);
        let param = origin.and_then(|(_, origin)| match origin {
            // A plugin is asked to name the parameter; it is not made to.
            Origin::Default(_, given) => given
                .iter()
                .filter(|given| message.contains(given.name))
                .max_by_key(|given| given.name.len())
                .map(|given| given.sent_as.to_owned()),
            Origin::Field(name) => Some((*name).to_owned()),
            Origin::Entry(name) => Some(format!("{name}.params")),
        });
        let message = format!("stage `{stage}`: {message}");
        ApiError {
            param,
            ..ApiError::new(Code::InvalidValue, message)
        }
    }

    /// The stages' names as faults give them.
    fn labels(&self) -> impl Iterator<Item = String> {
        stage_names(&self.stages).into_iter()
    }
}

impl Origin {
    fn name(&self) -> String {
        match self {
            Self::Default(stage, _) => stage.plugin().to_owned(),
            Self::Field(name) => (*name).to_owned(),
            Self::Entry(name) => name.clone(),
        }
    }

    pub(super) fn check_params(&self, stage: &StageRef) -> Result<(), ApiError> {
        let params = Value::Object(stage.params.clone());
        stage
            .plugin
            .validate_params(&params)
            .map_err(|error| self.refuse(&error, &params, &stage.plugin.params_schema))
    }

    /// The schema's refusal in the client's words.
    fn refuse(&self, error: &ParamsError, params: &Value, schema: &Value) -> ApiError {
        let path = error.pointer.trim_start_matches('/');
        let (name, rest) = path.split_once('/').unwrap_or((path, ""));
        let name = name.replace("~1", "/").replace("~0", "~");
        let param = match self {
            Self::Default(stage, given) => {
                given.iter().find(|given| given.name == name).map_or_else(
                    || stage.plugin().to_owned(),
                    |given| given.sent_as.to_owned(),
                )
            }
            Self::Field(field) => (*field).to_owned(),
            Self::Entry(entry) if path.is_empty() => format!("{entry}.params"),
            Self::Entry(entry) => format!("{entry}.params.{}", cut(&name)),
        };
        let value = params.pointer(&error.pointer).filter(|_| !path.is_empty());
        let allowed = schema["properties"]
            .get(&name)
            .filter(|_| rest.is_empty())
            .and_then(allowed);
        match (value, allowed) {
            (Some(value), Some(allowed)) => ApiError::invalid(&param, value, allowed),
            (Some(value), None) => {
                let place = if rest.is_empty() {
                    String::new()
                } else {
                    format!(" at `{}`", cut(rest))
                };
                let message = format!("`{param}`{place} is {}: {}", shown(value), error.message);
                ApiError::of(Code::InvalidValue, param, message)
            }
            (None, _) => {
                let message = format!("`{param}`: {}", error.message);
                ApiError::of(Code::InvalidValue, param, message)
            }
        }
    }
}

/// What the schema of a plain number or boolean allows, in words.
fn allowed(schema: &Value) -> Option<String> {
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<_> = values.iter().map(Value::to_string).collect();
        return Some(values.join(" or "));
    }
    let mut words = match schema["type"].as_str()? {
        "number" => "a number".to_owned(),
        "integer" => "an integer".to_owned(),
        "boolean" => return Some("true or false".to_owned()),
        _ => return None,
    };
    let bounds = [
        ("minimum", "of at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
    ];
    let given: Vec<_> = bounds
        .iter()
        .filter_map(|(key, text)| Some(format!("{text} {}", schema.get(key)?)))
        .collect();
    if !given.is_empty() {
        words = format!("{words} {}", given.join(" and "));
    }
    Some(words)
}

/// Reads a list of `{plugin, params, on_fault}`.
fn read_entries(list: &Given, registry: &Registry) -> Result<Vec<(StageRef, Origin)>, ApiError> {
    let entries = list
        .value
        .as_array()
        .filter(|entries| entries.len() <= MAX_STAGES)
        .ok_or_else(|| {
            list.invalid(format_args!(
                "a list of at most {MAX_STAGES} objects with a `plugin`"
            ))
        })?;
    entries
        .iter()
        .enumerate()
        .map(|(index, entry)| {
            let name = format!("{}[{index}]", list.sent_as);
            let stage = read_entry(&name, entry, registry)?;
            Ok((stage, Origin::Entry(name)))
        })
        .collect()
}

fn read_entry(name: &str, entry: &Value, registry: &Registry) -> Result<StageRef, ApiError> {
    let object = entry
        .as_object()
        .ok_or_else(|| ApiError::invalid(name, entry, "an object with a `plugin`"))?;
    let mut plugin = None;
    let mut params = Map::new();
    let mut on_fault = OnFault::Fail;
    for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        let path = format!("{name}.{}", cut(key));
        match (key.as_str(), value) {
            ("plugin", Value::String(reference)) => plugin = Some(reference),
            ("plugin", other) => {
                return Err(ApiError::invalid(
                    &path,
                    other,
                    "a plugin's name, name@version or digest",
                ));
            }
            ("params", Value::Object(object)) => {
                let given = object.iter().filter(|(_, value)| !value.is_null());
                params = given.map(|(k, v)| (k.clone(), v.clone())).collect();
            }
            ("params", other) => return Err(ApiError::invalid(&path, other, "an object")),
            ("on_fault", value) if value == "fail" => {}
            ("on_fault", value) if value == "skip" => on_fault = OnFault::Skip,
            ("on_fault", value) if value == "wait" => on_fault = OnFault::Wait,
            ("on_fault", value) => {
                let expected = "\"fail\", \"skip\" or \"wait\"";
                return Err(ApiError::invalid(&path, value, expected));
            }
            _ => {
                let message =
                    format!("there is no `{path}`; a stage has `plugin`, `params` and `on_fault`");
                return Err(ApiError::of(Code::UnknownField, path, message));
            }
        }
    }
    let path = format!("{name}.plugin");
    let reference = plugin
        .ok_or_else(|| ApiError::of(Code::MissingField, &path, format!("`{path}` is required")))?;
    let plugin = registry.get(reference).ok_or_else(|| {
        let message = format!(
            "there is no plugin `{}`",
            shown(&Value::from(reference.as_str())).trim_matches('"')
        );
        ApiError::of(Code::PluginNotFound, &path, message)
    })?;
    let reason = match on_fault {
        OnFault::Fail => None,
        OnFault::Skip => Some("\"skip\", but only a token processor can be opened anew"),
        OnFault::Wait => Some("\"wait\", but only a token processor can be waited for"),
    };
    if let Some(reason) = reason.filter(|_| plugin.kind != Kind::TokenProcessor) {
        let path = format!("{name}.on_fault");
        let message = format!(
            "`{path}` is {reason}; `{}` is a {}",
            plugin.name, plugin.kind
        );
        return Err(ApiError::of(Code::InvalidValue, path, message));
    }
    Ok(StageRef {
        plugin,
        params,
        on_fault,
    })
}
