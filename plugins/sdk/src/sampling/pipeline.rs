use super::{
    Params, Stage, epsilon, eta, min_p, order, temperature, top_a, top_k, top_n_sigma, top_p,
    typical, xtc,
};
use crate::{
    TokenId,
    ranking::{Ranking, Row},
};

/// The stages that a request turned on, in order.
#[derive(Clone, Debug)]
pub struct Pipeline {
    params: Params,
    stages: Vec<Stage>,
    end_ids: Vec<TokenId>,
    vocabulary_size: usize,
}

impl Pipeline {
    /// Stages for rows of `vocabulary_size` logits; `end_ids` end a sequence.
    ///
    /// # Errors
    /// An `order` with an unknown or repeated name, or without a stage that is
    /// on; a `min_keep` above the vocabulary size.
    pub fn new(
        params: Params,
        end_ids: &[TokenId],
        vocabulary_size: usize,
    ) -> Result<Self, String> {
        if params.min_keep > vocabulary_size {
            return Err(format!(
                "min_keep is {}; the vocabulary has {vocabulary_size} tokens",
                params.min_keep
            ));
        }
        Ok(Self {
            stages: order::stages(&params, vocabulary_size)?,
            params,
            end_ids: end_ids.to_vec(),
            vocabulary_size,
        })
    }

    /// The tokens that may be drawn, in order, with their masses. None if
    /// every token is banned. `uniform(1)`, in [0, 1), says whether xtc fires.
    pub fn kept<R: Row>(&self, row: R, uniform: &impl Fn(u32) -> f64) -> Option<Ranking<R>> {
        let mut ranking = Ranking::new(row);
        if self.params.is_greedy() {
            ranking.keep(1);
        } else {
            for &stage in &self.stages {
                self.apply(stage, &mut ranking, uniform);
            }
        }
        ranking.has(0).then_some(ranking)
    }

    fn apply<R: Row>(&self, stage: Stage, ranking: &mut Ranking<R>, uniform: &impl Fn(u32) -> f64) {
        let params = &self.params;
        let min_keep = params.min_keep;
        let kept = match stage {
            Stage::Temperature => return temperature::apply(ranking, params),
            Stage::Typical => return typical::apply(ranking, params.typical_p, min_keep),
            Stage::Xtc => {
                if uniform(1) < params.xtc_probability {
                    let threshold = params.xtc_threshold;
                    let n = xtc::dropped(ranking, threshold, min_keep, &self.end_ids);
                    ranking.drop_best(n);
                }
                return;
            }
            Stage::TopK => match top_k::limit(params.top_k, min_keep, self.vocabulary_size) {
                Some(limit) => limit,
                None => return,
            },
            Stage::TopNSigma => top_n_sigma::kept(ranking, params.top_n_sigma, min_keep),
            Stage::TopP => top_p::kept(ranking, params.top_p, min_keep),
            Stage::Epsilon => epsilon::kept(ranking, params.epsilon_cutoff, min_keep),
            Stage::Eta => eta::kept(ranking, params.eta_cutoff, min_keep),
            Stage::TopA => top_a::kept(ranking, params.top_a, min_keep),
            Stage::MinP => min_p::kept(ranking, params.min_p, min_keep),
        };
        ranking.keep(kept);
    }

    /// Draws one of the kept tokens by `uniform(0)`. None if every token is
    /// banned.
    pub fn choose(&self, row: impl Row, uniform: &impl Fn(u32) -> f64) -> Option<TokenId> {
        let mut kept = self.kept(row, uniform)?;
        let rank = kept.draw(uniform(0))?;
        kept.id(rank)
    }
}
