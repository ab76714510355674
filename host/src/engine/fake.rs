//! A model and a chain whose answers are written down beforehand, so that the
//! whole service can be tested without MLX and WebAssembly.

use super::{Chain, Fault, Logits, LogitsRow, Model, ModelError, Plan, Row, TokenId};
use std::collections::HashMap;

/// A model whose logits are a function of the context.
pub struct ScriptedModel<F> {
    vocabulary_size: usize,
    script: F,
    contexts: HashMap<u32, Vec<TokenId>>,
    logits: Logits,
}

impl<F: FnMut(&[TokenId]) -> Vec<f32>> ScriptedModel<F> {
    /// `script` gives the logits that follow a context; values it leaves out
    /// are negative infinity.
    pub fn new(vocabulary_size: usize, script: F) -> Self {
        Self {
            vocabulary_size,
            script,
            contexts: HashMap::new(),
            logits: Logits::default(),
        }
    }
}

impl<F: FnMut(&[TokenId]) -> Vec<f32>> Model for ScriptedModel<F> {
    fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    fn forward(&mut self, rows: &[Row]) -> Result<(), ModelError> {
        let mut computed = Vec::new();
        for row in rows {
            let context = self.contexts.entry(row.slot).or_default();
            // What came after a position that is computed anew is forgotten.
            context.truncate(row.position as usize);
            if context.len() != row.position as usize {
                return Err(ModelError(format!(
                    "slot {} holds {} tokens and got position {}",
                    row.slot,
                    context.len(),
                    row.position
                )));
            }
            context.push(row.token);
            if row.wants_logits {
                let mut logits = (self.script)(context);
                logits.resize(self.vocabulary_size, f32::NEG_INFINITY);
                computed.extend(logits);
            }
        }
        self.logits.replace(self.vocabulary_size, &computed);
        Ok(())
    }

    fn logits(&mut self) -> &mut Logits {
        &mut self.logits
    }

    fn bytes_per_position(&self) -> usize {
        1
    }

    fn share(&mut self, from: u32, slot: u32, n_positions: u32) {
        let shared = self.contexts[&from][..n_positions as usize].to_vec();
        self.contexts.insert(slot, shared);
    }

    fn release(&mut self, slot: u32) {
        self.contexts.remove(&slot);
    }
}

/// A chain that plans by a function of the tokens accepted so far and takes
/// the best logit.
pub struct ScriptedChain<F> {
    accepted: Vec<TokenId>,
    plan: F,
}

impl<F: FnMut(&[TokenId]) -> Result<Plan, Fault> + Send> ScriptedChain<F> {
    pub fn new(plan: F) -> Self {
        Self {
            accepted: Vec::new(),
            plan,
        }
    }
}

/// A chain that always takes the best logit.
pub fn greedy() -> Box<dyn Chain> {
    Box::new(ScriptedChain::new(|_| Ok(Plan::Sample)))
}

impl<F: FnMut(&[TokenId]) -> Result<Plan, Fault> + Send> Chain for ScriptedChain<F> {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
        self.accepted.extend_from_slice(accepted);
        (self.plan)(&self.accepted)
    }

    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        let row = row.values();
        let mut best = 0;
        for (i, logit) in row.iter().enumerate() {
            if *logit > row[best] {
                best = i;
            }
        }
        Ok(best as TokenId)
    }
}
