//! `l −= frequency · count`, over the history: generated tokens, or the prompt
//! too. As in OpenAI's API reference.

use sluice_plugin::{TokenId, window::Window};

#[derive(Debug)]
pub(crate) struct Frequency {
    penalty: f32,
    window: Window,
}

impl Frequency {
    /// Over the last `size` tokens accepted; 0: over all.
    pub(crate) fn new(penalty: f32, size: u32) -> Self {
        Self {
            penalty,
            window: Window::new(size),
        }
    }

    pub(crate) fn accept(&mut self, id: TokenId) {
        self.window.push(id);
    }

    /// What to add to which logit: finite, whatever the penalty.
    pub(crate) fn additions(&self) -> (&[TokenId], Vec<f32>) {
        let values = self
            .window
            .counts()
            .iter()
            .map(|&count| (-self.penalty * count as f32).clamp(f32::MIN, f32::MAX));
        (self.window.ids(), values.collect())
    }
}
