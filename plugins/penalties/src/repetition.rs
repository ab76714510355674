//! `l > 0: l / r`, any other `l · r`, once for each distinct token of prompt
//! and generated text. 1 is neutral. Keskar et al. 2019, section 4.1,
//! <https://arxiv.org/abs/1909.05858>; negative logits as in Hugging Face
//! transformers.

use sluice_plugin::{TokenId, window::Window};

#[derive(Debug)]
pub(crate) struct Repetition {
    divisor: f32,
    window: Window,
}

impl Repetition {
    /// Over the last `size` tokens, prompt included; 0: over all.
    pub(crate) fn new(divisor: f32, size: u32, prompt: &[TokenId]) -> Self {
        let mut window = Window::new(size);
        for &id in prompt {
            window.push(id);
        }
        Self { divisor, window }
    }

    pub(crate) fn accept(&mut self, id: TokenId) {
        self.window.push(id);
    }

    /// The tokens to scale.
    pub(crate) fn ids(&self) -> &[TokenId] {
        self.window.ids()
    }

    pub(crate) fn divisor(&self) -> f32 {
        self.divisor
    }
}
