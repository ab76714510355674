use schemars::JsonSchema;
use serde::Deserialize;

use super::{order, temperature};

/// What a request may ask of a sampler. Every stage is off by default; the host
/// checks the ranges.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[schemars(description = "")]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Divides the logits. Below 0.00001 the best token is taken and nothing is
    /// truncated.
    #[schemars(range(min = 0, max = 100))]
    pub temperature: f32,
    /// How far the temperature moves with the entropy: from temperature less
    /// this, at least 0, up to temperature plus this; 0: off. kalomaze 2023,
    /// text-generation-webui, pull request 5174.
    #[schemars(range(min = 0, max = 100))]
    pub dynatemp_range: f64,
    /// The power of the entropy, as a share of the highest, that places the
    /// temperature in its range.
    #[schemars(range(min = 0, max = 100))]
    pub dynatemp_exponent: f64,
    /// Quadratic smoothing, after temperature: the strength of a curve that
    /// takes the place of distances to the best logit; 0: off. kalomaze 2024,
    /// text-generation-webui, pull request 5403.
    #[schemars(range(min = 0))]
    pub smoothing_factor: f64,
    /// The share of the cube in the curve: 1 none, 3 all.
    /// text-generation-webui, pull request 5551.
    #[schemars(range(min = 1, max = 3))]
    pub smoothing_curve: f64,
    /// Keeps logits within so many standard deviations of the best; 0 or less:
    /// off. Tang et al. 2024, arXiv 2411.07641.
    #[schemars(range(max = 100))]
    pub top_n_sigma: f64,
    /// Keeps the tokens whose surprise is nearest to the entropy, as few as
    /// reach this probability together; 1: off. Meister et al. 2022, arXiv
    /// 2202.00666.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1))]
    pub typical_p: f64,
    /// Keeps the so many best tokens; 0, -1 and the vocabulary size or more:
    /// off. Fan et al. 2018, arXiv 1805.04833.
    #[schemars(range(min = -1, max = 2_147_483_647))]
    pub top_k: i64,
    /// Keeps the best tokens, as few as reach this probability together; 1:
    /// off. Holtzman et al. 2020, arXiv 1904.09751.
    #[schemars(range(min = 0, max = 1))]
    pub top_p: f64,
    /// Keeps tokens of at least this probability; 0: off. Hewitt et al. 2022,
    /// arXiv 2210.15191.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub epsilon_cutoff: f64,
    /// Keeps tokens of at least this probability, or of less where the entropy
    /// is high; 0: off. Hewitt et al. 2022, arXiv 2210.15191.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub eta_cutoff: f64,
    /// Keeps tokens of at least this times the square of the highest
    /// probability; 0: off. BlinkDL 2021, RWKV-LM.
    #[schemars(range(min = 0, max = 1))]
    pub top_a: f64,
    /// Keeps tokens at least this times as likely as the best; 0: off. Nguyen et
    /// al. 2024, arXiv 2407.01082.
    #[schemars(range(min = 0, max = 1))]
    pub min_p: f64,
    /// How often to exclude top choices: all tokens that reach `xtc_threshold`
    /// but the least likely of them; 0: off. text-generation-webui, pull request
    /// 6335.
    #[schemars(range(min = 0, max = 1))]
    pub xtc_probability: f64,
    /// The probability that makes a token a top choice. Above 0.5 there is at
    /// most one: off.
    #[schemars(range(min = 0, max = 1))]
    pub xtc_threshold: f64,
    /// Every truncating stage keeps at least so many tokens. At most the
    /// vocabulary size.
    #[schemars(range(min = 1))]
    pub min_keep: usize,
    /// The stages in order; one that is on must be there. Dynamic temperature
    /// and smoothing stand at temperature's place. Other names of a stage:
    /// typical and `typ_p`, `epsilon_cutoff`, `eta_cutoff`.
    #[schemars(schema_with = "order::schema", extend("default" = order::names()))]
    pub order: Option<Vec<String>>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            smoothing_factor: 0.0,
            smoothing_curve: 1.0,
            top_n_sigma: 0.0,
            typical_p: 1.0,
            top_k: 0,
            top_p: 1.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            top_a: 0.0,
            min_p: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            min_keep: 1,
            order: None,
        }
    }
}

impl Params {
    /// Whether the best token is always taken.
    pub fn is_greedy(&self) -> bool {
        temperature::is_greedy(self.temperature)
    }
}
