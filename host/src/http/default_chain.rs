//! What the fields of a request make of the default stages.

use std::sync::Arc;

use serde_json::Map;

use super::dialect::Dialect;
use super::errors::{ApiError, Code};
use super::field_table::DefaultStage;
use super::fields::{Given, as_integer, same};
use super::stages::Origin;
use crate::plugin::{Plugin, Registry, StageRef};

/// A field that is a parameter, and the default stage it is one of.
pub(super) type Param = (DefaultStage, Given);

/// The default stages, by the fields given for them and a dialect.
pub(super) struct DefaultChain<'a> {
    pub(super) params: Vec<Param>,
    pub(super) dialect: &'a Dialect,
    pub(super) registry: &'a Registry,
}

impl DefaultChain<'_> {
    pub(super) fn plugin(&self, stage: DefaultStage) -> Result<Arc<Plugin>, ApiError> {
        let name = stage.plugin();
        self.registry.get(name).ok_or_else(|| {
            let message = format!("the default plugin `{name}` is not in the registry");
            ApiError::new(Code::PluginNotFound, message)
        })
    }

    /// The fields given for `stage`.
    fn given(&self, stage: DefaultStage) -> Vec<Given> {
        let of_stage = self.params.iter().filter(|(of, _)| *of == stage);
        of_stage.map(|(_, given)| given.clone()).collect()
    }

    /// Whether a field is given that is a number other than zero.
    pub(super) fn is_on(&self, name: &str) -> bool {
        let given = self.params.iter().find(|(_, given)| given.name == name);
        given.is_some_and(|(_, given)| given.value.as_f64() != Some(0.0))
    }

    /// A stage with the fields given for it, and the dialect's defaults.
    pub(super) fn stage(&self, stage: DefaultStage) -> Result<(StageRef, Origin), ApiError> {
        let plugin = self.plugin(stage)?;
        Ok(self.filled(plugin, stage, self.given(stage)))
    }

    fn filled(
        &self,
        plugin: Arc<Plugin>,
        stage: DefaultStage,
        given: Vec<Given>,
    ) -> (StageRef, Origin) {
        let of = if stage.is_sampler() {
            DefaultStage::Sampler
        } else {
            stage
        };
        let has = |name: &str| takes(&plugin, name);
        let mut params: Map<_, _> = self
            .dialect
            .defaults(of)
            .filter(|(name, _)| has(name))
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        for given in &given {
            params.insert(given.name.to_owned(), given.value.clone());
        }
        (StageRef::new(plugin, params), Origin::Default(stage, given))
    }

    /// Checks the fields of a stage that they leave off.
    pub(super) fn check_unused(&self, stage: DefaultStage) -> Result<(), ApiError> {
        if self.given(stage).is_empty() {
            return Ok(());
        }
        let (stage, origin) = self.stage(stage)?;
        origin.check_params(&stage)
    }

    /// The sampler that the fields ask for.
    pub(super) fn sampler(&self) -> Result<(StageRef, Origin), ApiError> {
        let target = self
            .params
            .iter()
            .find(|(_, given)| given.name == "adaptive_target");
        let aims = target.is_some_and(|(_, given)| given.value.as_f64() >= Some(0.0));
        let has_mirostat = self.is_on("mirostat");
        let is_off = |stage| match stage {
            DefaultStage::Mirostat => !has_mirostat,
            DefaultStage::AdaptiveP => !aims,
            _ => false,
        };
        let chosen = if has_mirostat {
            DefaultStage::Mirostat
        } else if aims {
            DefaultStage::AdaptiveP
        } else {
            DefaultStage::Sampler
        };
        let plugin = self.plugin(chosen)?;
        let mut given = Vec::new();
        for (of, field) in self.params.iter().filter(|(of, _)| of.is_sampler()) {
            if takes(&plugin, field.name) {
                given.push(field.clone());
                continue;
            }
            let home = self.plugin(*of)?;
            let off = &home.params_schema["properties"][field.name]["default"];
            // `mirostat_tau` may be a parameter of something that is off; a
            // truncation beside mirostat would be one that is not.
            if !is_off(*of) && !same(&field.value, off) {
                let message = format!(
                    "`{}` has no effect beside `{}`, which takes the place of other sampling: leave \
                     it out",
                    field.sent_as,
                    chosen.plugin()
                );
                return Err(ApiError::of(
                    Code::ConflictingFields,
                    field.sent_as,
                    message,
                ));
            }
            self.check_unused(*of)?;
        }
        Ok(self.filled(plugin, chosen, given))
    }
}

/// Whether a plugin's schema names this parameter.
fn takes(plugin: &Plugin, name: &str) -> bool {
    plugin.params_schema["properties"].get(name).is_some()
}

/// Writes a number as the default stages read it: integers without a
/// fraction, and a `top_k` beyond the vocabulary as the vocabulary's size,
/// which keeps everything too.
pub(super) fn canonicalise(given: &mut Given, vocabulary_size: u32) {
    let Some(integer) = as_integer(&given.value) else {
        return;
    };
    let integer = match given.name {
        "top_k" => integer.min(i128::from(vocabulary_size)),
        _ => integer,
    };
    if let Ok(integer) = i64::try_from(integer) {
        given.value = integer.into();
    }
}
