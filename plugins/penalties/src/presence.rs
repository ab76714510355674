//! `l −= presence`, once for each distinct token of the history: generated
//! tokens, or the prompt too. As in OpenAI's API reference.

use sluice_plugin::{TokenId, window::Window};

#[derive(Debug)]
pub(crate) struct Presence {
    penalty: f32,
    window: Window,
}

impl Presence {
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

    /// What to add to which logit.
    pub(crate) fn additions(&self) -> (&[TokenId], Vec<f32>) {
        let ids = self.window.ids();
        (ids, vec![-self.penalty; ids.len()])
    }
}
