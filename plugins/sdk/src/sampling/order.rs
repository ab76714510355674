//! Which stage comes when.

use schemars::{Schema, SchemaGenerator, json_schema};

use super::{Params, top_k};

/// What clients call some stages, and the stage's name.
const OTHER_NAMES: [(&str, &str); 4] = [
    ("typical", "typical_p"),
    ("typ_p", "typical_p"),
    ("epsilon_cutoff", "epsilon"),
    ("eta_cutoff", "eta"),
];

/// A stage that may be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// With dynamic temperature in its place, and smoothing after it.
    Temperature,
    TopNSigma,
    Typical,
    TopK,
    TopP,
    Epsilon,
    Eta,
    TopA,
    MinP,
    Xtc,
}

impl Stage {
    /// The order unless a request gives another.
    pub const DEFAULT_ORDER: [Self; 10] = [
        Self::Temperature,
        Self::TopNSigma,
        Self::Typical,
        Self::TopK,
        Self::TopP,
        Self::Epsilon,
        Self::Eta,
        Self::TopA,
        Self::MinP,
        Self::Xtc,
    ];

    /// The name in an order.
    pub fn name(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::TopNSigma => "top_n_sigma",
            Self::Typical => "typical_p",
            Self::TopK => "top_k",
            Self::TopP => "top_p",
            Self::Epsilon => "epsilon",
            Self::Eta => "eta",
            Self::TopA => "top_a",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
        }
    }

    /// Reads a name, or another that clients use for the same stage.
    fn named(name: &str) -> Option<Self> {
        let other = OTHER_NAMES.iter().find(|(other, _)| *other == name);
        let name = other.map_or(name, |(_, name)| name);
        let mut stages = Self::DEFAULT_ORDER.into_iter();
        stages.find(|stage| stage.name() == name)
    }

    /// Whether these parameters make the stage do anything.
    #[allow(clippy::float_cmp, reason = "1 is off, nothing near it")]
    fn is_on(self, params: &Params, vocabulary_size: usize) -> bool {
        match self {
            Self::Temperature => {
                params.temperature != 1.0
                    || params.dynatemp_range > 0.0
                    || params.smoothing_factor > 0.0
            }
            Self::TopNSigma => params.top_n_sigma > 0.0,
            Self::Typical => params.typical_p < 1.0,
            Self::TopK => top_k::limit(params.top_k, params.min_keep, vocabulary_size).is_some(),
            Self::TopP => params.top_p < 1.0,
            Self::Epsilon => params.epsilon_cutoff > 0.0,
            Self::Eta => params.eta_cutoff > 0.0,
            Self::TopA => params.top_a > 0.0,
            Self::MinP => params.min_p > 0.0,
            Self::Xtc => params.xtc_probability > 0.0 && params.xtc_threshold <= 0.5,
        }
    }
}

/// The names in the default order.
pub(super) fn names() -> [&'static str; 10] {
    Stage::DEFAULT_ORDER.map(Stage::name)
}

/// The schema of an order.
pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    let others = OTHER_NAMES.iter().map(|(other, _)| *other);
    let known: Vec<_> = names().into_iter().chain(others).collect();
    json_schema!({
        "type": "array",
        "items": { "enum": known },
        "uniqueItems": true,
    })
}

/// The stages that are on, in the order asked for.
///
/// # Errors
/// An unknown or repeated name, or a stage that is on and missing.
pub(super) fn stages(params: &Params, vocabulary_size: usize) -> Result<Vec<Stage>, String> {
    let order = match &params.order {
        None => Stage::DEFAULT_ORDER.to_vec(),
        Some(names) => placed(names)?,
    };
    let is_on = |stage: &Stage| stage.is_on(params, vocabulary_size);
    let on = Stage::DEFAULT_ORDER.into_iter().filter(is_on);
    if let Some(missing) = on.into_iter().find(|stage| !order.contains(stage)) {
        return Err(format!("order lacks `{}`, which is on", missing.name()));
    }
    Ok(order.into_iter().filter(is_on).collect())
}

fn placed(names: &[String]) -> Result<Vec<Stage>, String> {
    let mut order = Vec::new();
    for name in names {
        let Some(stage) = Stage::named(name) else {
            let known = Stage::DEFAULT_ORDER.map(Stage::name).join(", ");
            return Err(format!(
                "order has the unknown stage `{name}`; there are {known}"
            ));
        };
        if order.contains(&stage) {
            return Err(format!("order names `{}` twice", stage.name()));
        }
        order.push(stage);
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::{Params, Stage, stages};

    fn ordered(names: &[&str], mut params: Params) -> Result<Vec<Stage>, String> {
        params.order = Some(names.iter().map(|&name| name.to_owned()).collect());
        stages(&params, 8)
    }

    fn two() -> Params {
        Params {
            top_k: 2,
            top_p: 0.5,
            ..Params::default()
        }
    }

    #[test]
    fn only_stages_that_are_on_take_part() {
        assert_eq!(stages(&Params::default(), 8), Ok(vec![]));
        assert_eq!(stages(&two(), 8), Ok(vec![Stage::TopK, Stage::TopP]));
        let names = ["min_p", "top_p", "temperature", "top_k"];
        assert_eq!(ordered(&names, two()), Ok(vec![Stage::TopP, Stage::TopK]));
    }

    #[test]
    fn what_is_off_may_be_missing() {
        let off = Params {
            top_k: 8,
            xtc_probability: 1.0,
            xtc_threshold: 0.51,
            top_n_sigma: -1.0,
            ..Params::default()
        };
        assert_eq!(ordered(&[], off), Ok(vec![]));
    }

    #[test]
    fn a_name_may_be_unknown_repeated_or_missing() {
        let all =
            "temperature, top_n_sigma, typical_p, top_k, top_p, epsilon, eta, top_a, min_p, xtc";
        assert_eq!(
            ordered(&["top_k", "dry"], two()),
            Err(format!(
                "order has the unknown stage `dry`; there are {all}"
            ))
        );
        assert_eq!(
            ordered(&["typ_p", "top_k", "typical"], two()),
            Err("order names `typical_p` twice".into())
        );
        assert_eq!(
            ordered(&["top_k"], two()),
            Err("order lacks `top_p`, which is on".into())
        );
        for temperature in [0.0, 0.5] {
            let params = Params {
                temperature,
                ..Params::default()
            };
            let lacks = "order lacks `temperature`, which is on";
            assert_eq!(ordered(&["top_k"], params), Err(lacks.into()));
        }
    }
}
