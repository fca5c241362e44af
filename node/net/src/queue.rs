//! A bounded queue of encoded frames, between those who send and the one task that writes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore, TryAcquireError};

/// Why a frame was not queued.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PushError {
    /// No room, and the caller does not wait.
    Full,
    /// The queue was closed.
    Closed,
}

/// Frames, back to back, so that the writer takes whatever waits in one piece.
#[derive(Debug)]
pub(super) struct FrameQueue {
    state: Mutex<State>,
    ready: Notify,
    /// One permit a byte. A frame larger than the whole queue is let in when nothing else waits.
    room: Semaphore,
    capacity: u32,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    permits: usize,
    closed: bool,
}

impl FrameQueue {
    /// A queue with room for `capacity` bytes.
    pub(super) fn new(capacity: u32) -> Self {
        Self { state: Mutex::default(), ready: Notify::new(), room: Semaphore::new(capacity as usize), capacity }
    }

    /// Queues a frame or says at once that there is no room.
    pub(super) fn push_now(&self, frame: &[u8]) -> Result<(), PushError> {
        let cost = self.cost(frame);
        match self.room.try_acquire_many(cost) {
            Ok(permits) => permits.forget(),
            Err(TryAcquireError::NoPermits) => return Err(PushError::Full),
            Err(TryAcquireError::Closed) => return Err(PushError::Closed),
        }
        self.append(frame, cost)
    }

    /// Queues a frame when there is room. Waiters are served in order. Dropped before it is ready, it queues nothing.
    pub(super) async fn push(&self, frame: &[u8]) -> Result<(), PushError> {
        let cost = self.cost(frame);
        self.room.acquire_many(cost).await.map_err(|_| PushError::Closed)?.forget();
        self.append(frame, cost)
    }

    /// Takes all that waits, as soon as anything does; `None` once the queue is closed and empty. For one task only.
    pub(super) async fn take(&self) -> Option<Vec<u8>> {
        loop {
            {
                let mut state = self.lock();
                if !state.bytes.is_empty() {
                    self.room.add_permits(std::mem::take(&mut state.permits));
                    return Some(std::mem::take(&mut state.bytes));
                }
                if state.closed {
                    return None;
                }
            }
            self.ready.notified().await;
        }
    }

    /// Refuses further frames; those that wait can still be taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.room.close();
        self.ready.notify_one();
    }

    /// Closes the queue if nothing waits in it.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut state = self.lock();
        if !state.bytes.is_empty() {
            return false;
        }
        state.closed = true;
        drop(state);
        self.room.close();
        self.ready.notify_one();
        true
    }

    fn append(&self, frame: &[u8], cost: u32) -> Result<(), PushError> {
        let mut state = self.lock();
        if state.closed {
            return Err(PushError::Closed);
        }
        state.bytes.extend_from_slice(frame);
        state.permits += cost as usize;
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    fn cost(&self, frame: &[u8]) -> u32 {
        u32::try_from(frame.len()).unwrap_or(u32::MAX).min(self.capacity)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics while it holds the lock, and bytes are appended whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn frames_are_taken_together_and_in_order() {
        let queue = FrameQueue::new(16);
        queue.push_now(b"one").unwrap();
        queue.push(b"two").await.unwrap();
        assert_eq!(queue.take().await.unwrap(), b"onetwo");
        queue.close();
        assert_eq!(queue.push_now(b"x"), Err(PushError::Closed));
        assert_eq!(queue.push(b"x").await, Err(PushError::Closed));
        assert_eq!(queue.take().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_refuses_or_makes_wait() {
        let queue = Arc::new(FrameQueue::new(4));
        queue.push_now(b"abc").unwrap();
        assert_eq!(queue.push_now(b"de"), Err(PushError::Full));
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.push(b"de").await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        assert_eq!(queue.take().await.unwrap(), b"abc");
        waiting.await.unwrap().unwrap();
        assert_eq!(queue.take().await.unwrap(), b"de");
    }

    #[tokio::test]
    async fn a_frame_larger_than_the_queue_passes_alone() {
        let queue = FrameQueue::new(4);
        queue.push_now(b"0123456789").unwrap();
        assert_eq!(queue.push_now(b"x"), Err(PushError::Full));
        assert_eq!(queue.take().await.unwrap().len(), 10);
        queue.push_now(b"x").unwrap();
    }

    #[tokio::test]
    async fn only_an_empty_queue_closes_when_idle() {
        let queue = FrameQueue::new(4);
        queue.push_now(b"x").unwrap();
        assert!(!queue.close_if_empty());
        queue.take().await.unwrap();
        assert!(queue.close_if_empty());
        assert_eq!(queue.push_now(b"x"), Err(PushError::Closed));
    }
}
