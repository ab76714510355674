//! Progress of long work: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::mlx::Progress;

/// Shows one piece of work after the other.
#[derive(Default)]
pub struct ProgressLine {
    task: &'static str,
    bar: Option<ProgressBar>,
}

impl ProgressLine {
    /// Shows how far the work is; a new task begins a new bar or line.
    pub fn show(&mut self, step: Progress) {
        if step.task != self.task {
            self.begin(step);
        }
        if let Some(bar) = &self.bar {
            bar.set_length(step.total_bytes);
            bar.set_position(step.done_bytes);
            if step.done_bytes >= step.total_bytes {
                bar.finish();
            }
        }
    }

    fn begin(&mut self, step: Progress) {
        self.task = step.task;
        self.bar = None;
        if std::io::stderr().is_terminal() {
            let bar =
                ProgressBar::with_draw_target(Some(step.total_bytes), ProgressDrawTarget::stderr());
            let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(step.task);
            self.bar = Some(bar);
        } else {
            let megabytes = step.total_bytes as f64 / 1e6;
            eprintln!("{} ({megabytes:.0} MB)", step.task);
        }
    }
}
