//! Connections that do not wait for ever for a client that takes nothing.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;

/// Accepts connections that end when their client has taken no byte for some
/// time, though there are some for it.
pub struct Connections {
    listener: TcpListener,
    patience: Duration,
}

impl Connections {
    /// Those of `listener`, which end when a client takes nothing for
    /// `patience`.
    pub fn new(listener: TcpListener, patience: Duration) -> Self {
        Self { listener, patience }
    }
}

impl Listener for Connections {
    type Io = Patient<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Events are small and each is wanted at once.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps small packets back");
        }
        (Patient::new(stream, self.patience), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A stream whose writes fail when none has got on for some time.
pub struct Patient<S> {
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
