//! `l −= frequency · count`, over generated tokens.

use sluice_plugin::TokenId;

use crate::window::Window;

#[derive(Debug)]
pub(crate) struct Frequency {
    penalty: f32,
    window: Window,
}

impl Frequency {
    /// Over the last `size` generated tokens; 0: over all.
    pub(crate) fn new(penalty: f32, size: u32) -> Self {
        Self {
            penalty,
            window: Window::new(size),
        }
    }

    pub(crate) fn accept(&mut self, id: TokenId) {
        self.window.push(id);
    }

    /// What to add to which logit.
    pub(crate) fn additions(&self) -> (&[TokenId], Vec<f32>) {
        let values = self
            .window
            .counts()
            .iter()
            .map(|&count| -self.penalty * count as f32);
        (self.window.ids(), values.collect())
    }
}
