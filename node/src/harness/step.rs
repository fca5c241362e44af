//! What reading a program's frames leads to: the readers decide it, the sessions do it.

use serde_json::Value;
use tieline_proto::event::{Event, Outcome};

/// One thing to do after a frame.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Tell it.
    Event(Event),
    /// What is written next starts a new paragraph.
    Paragraph,
    /// The program has acknowledged the turn: from now on the session is resumed by this.
    Session(String),
    /// Write it to the program.
    Send(Value),
    /// The turn may go on without being asked to; if nothing comes for a moment, [`Step::Done`] with this.
    Pause(Outcome),
    /// The turn goes on after all.
    Resume,
    /// The turn ended.
    Done(Outcome),
    /// The program doesn't know the session that it was to resume, and has not been given the prompt.
    Lost,
}

/// What a program is told when its own history holds the prompt already, because its process was killed after it had
/// taken it: a prompt that stands there twice is work done twice.
pub(super) const CONTINUE: &str = "Your process was stopped while you were working on the last message. Go on with it \
    from where you were: look first at what is already done, don't do it again, and then give your answer to it.";
