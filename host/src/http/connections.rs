//! Connections that do not wait for ever for a client that takes nothing, or
//! says nothing.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Sleep;

/// The longest the head of a request may take to arrive, from the connection's
/// begin or the answer before: what only holds a connection is let go.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Accepts connections that end when their client has taken no byte for some
/// time, though there are some for it, or has sent no whole head of a request.
pub struct Connections {
    listener: TcpListener,
    patience: Duration,
    head: Duration,
}

impl Connections {
    /// Those of `listener`, which end when a client takes nothing for
    /// `patience`, or sends no whole head of a request for `head`.
    pub fn new(listener: TcpListener, patience: Duration, head: Duration) -> Self {
        Self {
            listener,
            patience,
            head,
        }
    }

    /// Answers until `told` completes, and then what is under way.
    pub async fn serve(mut self, router: Router, told: impl Future<Output = ()>) {
        let stop = watch::Sender::new(());
        let mut told = pin!(told);
        loop {
            let stream = tokio::select! {
                stream = self.accept() => stream,
                () = &mut told => break,
            };
            tokio::spawn(answer(stream, router.clone(), self.head, stop.subscribe()));
        }
        drop(self.listener);
        // Cannot matter that nobody hears it.
        let _ = stop.send(());
        stop.closed().await;
    }

    async fn accept(&mut self) -> Patient<TcpStream> {
        let (stream, _) = Listener::accept(&mut self.listener).await;
        // Events are small and each is wanted at once.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps small packets back");
        }
        Patient::new(stream, self.patience)
    }
}

/// Answers the requests of one connection until its end. After `stop` only the
/// one under way.
async fn answer(
    stream: Patient<TcpStream>,
    router: Router,
    head: Duration,
    mut stop: watch::Receiver<()>,
) {
    // One that would take other versions too would wait for a first byte for ever.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection ended");
    }
}

/// A stream whose writes fail when none has got on for some time.
struct Patient<S> {
    stream: S,
    patience: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    fn new(stream: S, patience: Duration) -> Self {
        Self {
            stream,
            patience,
            stalled: None,
        }
    }

    /// Passes on what a write came to, or ends the waiting.
    fn outcome<T>(
        &mut self,
        context: &mut Context,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stalled.as_mut().poll(context));
        let message = format!("the client took nothing for {patience:?}");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.outcome(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        slices: &[IoSlice],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.outcome(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.outcome(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_write_that_nobody_takes_fails_and_one_that_is_taken_does_not() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut patient = Patient::new(ours, Duration::from_millis(50));
        // Eight bytes, of which the other side takes four at once.
        let reads = async {
            let mut bytes = [0; 4];
            theirs.read_exact(&mut bytes).await.unwrap();
            bytes
        };
        let (written, read) = tokio::join!(patient.write_all(b"abcdefgh"), reads);
        written.unwrap();
        assert_eq!(&read, b"abcd");
        let error = patient.write_all(b"ijkl").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
