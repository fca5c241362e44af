//! What people and agents ask of a channel.

use super::super::state::{Card, Member, Turn, TurnPhase};
use super::super::{ATTACHMENT_LEN_MAX, ATTACHMENTS_MAX, MEMBERS_MAX, POST_LEN_MAX, QUEUE_LEN_MAX};
use super::{Ask, Cited, Context, Effect, Home, Op, OpError, Step, poster};
use crate::api::{ApiError, Code};
use crate::entry::{Auth, Body, MemberChange, MemberKind, MemberSpec, Post};
use crate::event::{Answer, Ask as EventAsk, AskKind, Outcome, Status};
use crate::id::{ClientId, Handle, MemberId, MessageId, Seq};
use crate::link::{AttemptId, Message};
use crate::route::Origin;

/// Longest answer to a question, in bytes of JSON.
pub const ANSWER_LEN_MAX: usize = 128 * 1024;

/// Longest folder of a member, in bytes: as long as a path can be. Like the model it goes with every delivery.
pub const CWD_LEN_MAX: usize = 4096;

/// Longest name of a model, in bytes.
pub const MODEL_LEN_MAX: usize = 256;

impl Home {
    pub(super) fn operate(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        auth: Auth,
        op: Op,
    ) -> Result<Ask, OpError> {
        if let Some(earlier) = self.earlier(context, by, &auth, &op) {
            return Ok(earlier);
        }
        // What was begun can still be ended in a channel that is over; nothing else happens in it.
        let ends =
            matches!(op, Op::MemberInterrupt(_) | Op::MemberKill(_) | Op::Answer(..) | Op::Hold { release: false, .. });
        if self.state.archived && !ends {
            return Err(ApiError::new(Code::ReadOnly, "the channel is archived"));
        }
        match op {
            Op::Post { post, client, run } => self.post(step, context, by, auth, post, client, run),
            Op::MemberAdd { spec, client } => self.member_add(step, context, by, spec, client),
            Op::MemberRename(member, handle) => {
                self.live(member)?;
                self.free_handle(&handle)?;
                Ok(self.change(step, context, by, member, MemberChange::Renamed { handle }))
            }
            Op::MemberConfigure { member, model, policy, cwd } => {
                let spec = &self.working(member)?.spec;
                check_settings(model.as_deref(), cwd.as_deref())?;
                let change = MemberChange::Configured {
                    model: model.or_else(|| spec.model.clone()),
                    policy: policy.or(spec.policy),
                    cwd: cwd.or_else(|| spec.cwd.clone()),
                };
                Ok(self.change(step, context, by, member, change))
            }
            Op::MemberPause(member) => {
                self.working(member)?;
                Ok(self.change(step, context, by, member, MemberChange::Paused))
            }
            Op::MemberResume(member) => {
                self.working(member)?;
                let done = self.change(step, context, by, member, MemberChange::Resumed);
                self.pump(step, context, member);
                Ok(done)
            }
            Op::MemberInterrupt(member) => self.interrupt(step, context, by, member),
            Op::MemberKill(member) => {
                self.working(member)?;
                let done = self.change(step, context, by, member, MemberChange::Killed);
                self.kill(step, context, by, member);
                Ok(done)
            }
            Op::MemberRevive(member) => {
                self.working(member)?;
                let done = self.change(step, context, by, member, MemberChange::Revived);
                self.pump(step, context, member);
                Ok(done)
            }
            Op::MemberRemove(member) => {
                let leaving = self.live(member)?;
                let run = leaving.turn;
                let person = |member: &Member| member.spec.kind == MemberKind::Human && !member.removed;
                let people = self.state.members.values().filter(|member| person(member)).count();
                if person(leaving) && people == 1 {
                    let words = format!(
                        "@{} is the last person of the channel: nobody could post any more",
                        leaving.spec.handle
                    );
                    return Err(ApiError::new(Code::Refused, words).hint("tieline channel archive CHANNEL"));
                }
                let seq = self.append(step, context, by, Auth::Home, Body::MemberRemoved { member });
                if let Some(run) = run.filter(|run| self.may_drop(*run)) {
                    self.drop_held(step, context, by, run, false);
                }
                self.kill(step, context, by, member);
                self.finish_rounds(step, context);
                Ok(Ask::Done(seq))
            }
            Op::Answer(card, answer) => self.answer(step, context, by, card, answer),
            Op::Hold { message, release, may_run_twice } => {
                self.decide(step, context, by, message, release, may_run_twice)
            }
            Op::Archive => {
                let seq = self.append(step, context, by, auth, Body::ChannelArchived {});
                for run in self.state.turns.keys().copied().collect::<Vec<_>>() {
                    self.stop(step, context, by, run);
                }
                Ok(Ask::Done(seq))
            }
        }
    }

    /// What an earlier request with the same id led to: a repeated one is answered with that, whatever changed since.
    pub(super) fn earlier(&self, context: &Context<'_>, by: Option<MemberId>, auth: &Auth, op: &Op) -> Option<Ask> {
        match op {
            Op::Post { client: Some(client), .. } => {
                let key = (poster(by, auth), client.clone());
                let recent = self.clients.get(&key).copied();
                let (message, seq) = recent.or_else(|| context.history.posted(by, auth, client))?;
                let to = self.cited(context.history, message).map(|cited| self.handles(&cited.to));
                Some(Ask::Posted { message, seq, unknown: Vec::new(), to: to.unwrap_or_default() })
            }
            Op::MemberAdd { client: Some(client), .. } => self.state.added_by(client).map(Ask::Added),
            _ => None,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one post")]
    pub(super) fn post(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        auth: Auth,
        post: Post,
        client: Option<ClientId>,
        run: Option<MessageId>,
    ) -> Result<Ask, OpError> {
        check_post(&post)?;
        let author = by.and_then(|id| self.state.members.get(&id)).filter(|author| !author.removed);
        let author = author.ok_or_else(|| ApiError::new(Code::Refused, "only members of the channel post"))?;
        // Whatever an agent says of the turn it posts from, its hops count on: only people begin anew.
        let origin = match author.spec.kind {
            MemberKind::Agent => Origin::MidTurn { hops: author.hops },
            _ => Origin::Post,
        };
        let run = run.filter(|run| author.turn == Some(*run));
        let poster = poster(by, &auth);
        if let Some(target) = post.reply_to
            && (target > self.state.message || target == MessageId(0))
        {
            return Err(ApiError::new(Code::NotFound, format!("there is no message #{target} to reply to"))
                .hint("tieline tail CHANNEL --once shows the numbers"));
        }
        let message = self.state.message.next();
        let (routed, held) = self.route(by, origin, &post.text, message)?;
        for delivery in &routed.to {
            let full = self.state.members.get(&delivery.member).filter(|to| to.queue.len() >= QUEUE_LEN_MAX);
            if let Some(full) = full {
                let handle = &full.spec.handle;
                return Err(ApiError::new(Code::Limit, format!("{QUEUE_LEN_MAX} messages wait for @{handle} already"))
                    .hint("wait until its box is back, or pause posting to it"));
            }
        }
        let unknown = routed.unknown.clone();
        let to = routed.to.iter().filter_map(|d| self.state.members.get(&d.member)).map(|m| m.spec.handle.clone());
        let to = to.collect();
        let body = Body::Posted { message, client: client.clone(), run, post, routed: routed.clone() };
        let cited = Cited::of(by, &body);
        let seq = self.append(step, context, by, auth, body);
        self.remember(seq, cited);
        if let Some(client) = client {
            self.clients.insert((poster, client), (message, seq));
        }
        self.hold_and_pump(step, context, message, &routed, held);
        Ok(Ask::Posted { message, seq, unknown, to })
    }

    pub(super) fn member_add(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        spec: MemberSpec,
        client: Option<ClientId>,
    ) -> Result<Ask, OpError> {
        self.free_handle(&spec.handle)?;
        check_settings(spec.model.as_deref(), spec.cwd.as_deref())?;
        if self.state.members.values().filter(|member| !member.removed).count() >= MEMBERS_MAX {
            return Err(ApiError::new(Code::Limit, format!("a channel has at most {MEMBERS_MAX} members")));
        }
        let seq = self.append(step, context, by, Auth::Home, Body::MemberAdded { member: spec, client });
        Ok(Ask::Added(MemberId(seq.0)))
    }

    pub(super) fn answer(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        card: MessageId,
        answer: Answer,
    ) -> Result<Ask, OpError> {
        let (run, ask) = match self.state.cards.get(&card) {
            Some(Card::Ask { answered: Some((who, choice, _)), .. }) => {
                let who = self.state.handle(*who);
                let choice = choice.join(", ");
                return Err(ApiError::new(Code::Conflict, format!("@{who} has answered #{card} already: {choice}")));
            }
            Some(Card::Ask { run, ask, .. }) => (*run, ask.clone()),
            Some(Card::HeldTurn { .. } | Card::HeldDelivery { .. }) => {
                return Err(ApiError::new(Code::Invalid, format!("#{card} is a hold"))
                    .hint(format!("tieline hold release CHANNEL {card}, or: tieline hold drop CHANNEL {card}")));
            }
            None => {
                let decided = self.state.decided.iter().find(|(number, _, _)| *number == card);
                if let Some((_, who, choice)) = decided {
                    let (who, choice) = (self.state.handle(*who), choice.join(", "));
                    let words = format!("@{who} has answered #{card} already: {choice}");
                    return Err(ApiError::new(Code::Conflict, words));
                }
                return Err(ApiError::new(Code::NotFound, format!("#{card} is no open card")).hint("tieline inbox"));
            }
        };
        check_answer(&ask, &answer)?;
        let Answer { choice, text } = answer;
        let body = Body::CardAnswered { card, choice, text };
        let seq = self.append(step, context, by, Auth::Home, body);
        if let Some(turn) = self.state.turns.get(&run) {
            let node = turn.node;
            self.send_answers(step, node, Some(run));
        }
        Ok(Ask::Done(seq))
    }

    pub(super) fn decide(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        message: MessageId,
        release: bool,
        may_run_twice: bool,
    ) -> Result<Ask, OpError> {
        let held = self.state.cards.iter().find(|(id, card)| match card {
            Card::HeldTurn { run, .. } => **id == message || *run == message,
            Card::HeldDelivery { message: of, .. } => **id == message || *of == message,
            Card::Ask { .. } => false,
        });
        match held.map(|(_, card)| card.clone()) {
            Some(Card::HeldTurn { run, .. }) => {
                if !release {
                    return Ok(Ask::Done(self.drop_held(step, context, by, run, may_run_twice)));
                }
                let body = Body::HoldReleased { message: run, retry: true, may_run_twice };
                let seq = self.append(step, context, by, Auth::Home, body);
                if let Some(member) = self.state.turns.get(&run).map(|turn| turn.member) {
                    self.pump(step, context, member);
                }
                Ok(Ask::Done(seq))
            }
            Some(Card::HeldDelivery { message: of, member, .. }) => {
                let body = Body::DeliveryReleased { message: of, member, deliver: release };
                let seq = self.append(step, context, by, Auth::Home, body);
                self.pump(step, context, member);
                Ok(Ask::Done(seq))
            }
            // Its box may never come back, and then nothing else would end it.
            _ if !release && self.may_drop(message) => {
                Ok(Ask::Done(self.drop_held(step, context, by, message, may_run_twice)))
            }
            _ => Err(ApiError::new(Code::NotFound, format!("nothing is held under #{message}"))
                .hint("tieline hold list CHANNEL")),
        }
    }

    /// Whether a turn can be given up: nobody knows what becomes of it, or nobody can be asked.
    fn may_drop(&self, run: MessageId) -> bool {
        self.state.turns.get(&run).is_some_and(|turn| match turn.phase {
            TurnPhase::Held(_) => true,
            _ => !turn.released && !self.up.contains_key(&turn.node),
        })
    }

    /// Gives a turn up that is held, or whose box is out of reach.
    pub(super) fn drop_held(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        run: MessageId,
        may_run_twice: bool,
    ) -> Seq {
        let turn = self.state.turns.get(&run).map(|turn| (turn.member, turn.node, self.attempt_id(run, turn)));
        let held = self.state.turns.get(&run).is_some_and(Turn::is_settled);
        if let Some((_, _, id)) = turn.filter(|_| !held) {
            self.hold(step, context, id, "its box is out of reach".to_owned());
        }
        let body = Body::HoldReleased { message: run, retry: false, may_run_twice };
        let seq = self.append(step, context, by, Auth::Home, body);
        self.runs.remove(&run);
        self.finish_rounds(step, context);
        if let Some((member, node, id)) = turn {
            // The resident keeps what it knows of the attempt until it hears that nobody asks any more.
            step.effects.push(Effect::Send(node, Message::FinishedAck { id }, Vec::new()));
            self.pump(step, context, member);
        }
        seq
    }

    pub(super) fn live(&self, id: MemberId) -> Result<&Member, OpError> {
        let member = self.state.members.get(&id).filter(|member| !member.removed);
        member.ok_or_else(|| ApiError::new(Code::NotFound, "the member has left the channel"))
    }

    /// A member that runs turns: a person is not paused, killed or configured.
    fn working(&self, id: MemberId) -> Result<&Member, OpError> {
        let member = self.live(id)?;
        if member.spec.kind == MemberKind::Human {
            let words = format!("@{} is a person and runs no turns", member.spec.handle);
            return Err(ApiError::new(Code::Refused, words).hint("tieline member list CHANNEL"));
        }
        Ok(member)
    }

    pub(super) fn free_handle(&self, handle: &Handle) -> Result<(), OpError> {
        match self.state.by_handle(handle.as_str()) {
            None => Ok(()),
            Some(_) => Err(ApiError::new(Code::Conflict, format!("@{handle} is a member already"))),
        }
    }

    pub(super) fn change(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        member: MemberId,
        change: MemberChange,
    ) -> Ask {
        Ask::Done(self.append(step, context, by, Auth::Home, Body::MemberChanged { member, change }))
    }

    pub(super) fn interrupt(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        member: MemberId,
    ) -> Result<Ask, OpError> {
        let member = self.live(member)?;
        let handle = &member.spec.handle;
        let turn = member.turn.and_then(|run| Some((run, self.state.turns.get(&run)?)));
        match turn {
            Some((_, Turn { phase: TurnPhase::Held(card), .. })) => {
                let what = format!("nobody knows whether @{handle} still works: its turn is held by #{card}");
                Err(ApiError::new(Code::Conflict, what).hint(format!("tieline hold drop CHANNEL {card}")))
            }
            Some((run, _)) => Ok(Ask::Done(self.stop(step, context, by, run))),
            None => Err(ApiError::new(Code::Conflict, format!("@{handle} runs no turn"))),
        }
    }

    pub(super) fn kill(&mut self, step: &mut Step, context: &mut Context<'_>, by: Option<MemberId>, member: MemberId) {
        let Some(state) = self.state.members.get(&member) else { return };
        let node = state.spec.node;
        if let Some(run) = state.turn {
            self.stop(step, context, by, run);
        }
        if let Some(node) = node {
            step.effects.push(Effect::Send(node, Message::Kill { channel: self.state.id, member }, Vec::new()));
        }
    }

    /// Asks the resident to stop a turn. A held one stays as it is: there is nobody to ask.
    pub(super) fn stop(
        &mut self,
        step: &mut Step,
        context: &mut Context<'_>,
        by: Option<MemberId>,
        run: MessageId,
    ) -> Seq {
        let Some(turn) = self.state.turns.get(&run) else { return self.state.seq };
        if matches!(turn.phase, TurnPhase::Held(_)) {
            return self.state.seq;
        }
        let (node, id, released) = (turn.node, self.attempt_id(run, turn), turn.released);
        let seq = self.append(step, context, by, Auth::Home, Body::StopRequested { message: run });
        if released {
            let reason = "it was stopped before it was tried again".to_owned();
            self.abandon(step, context, id, Some(reason));
        } else {
            step.effects.push(Effect::Send(node, Message::Stop { id }, Vec::new()));
        }
        seq
    }

    /// Ends a turn that was to stop and that no resident will end.
    pub(super) fn abandon(&mut self, step: &mut Step, context: &mut Context<'_>, id: AttemptId, error: Option<String>) {
        let Some(node) = self.state.turns.get(&id.run).map(|turn| turn.node) else { return };
        let outcome = Outcome { status: Status::Interrupted, text: String::new(), error, usage: None };
        self.finish(step, context, id, outcome, None, Auth::Home);
        step.effects.push(Effect::Send(node, Message::FinishedAck { id }, Vec::new()));
    }
}

fn check_post(post: &Post) -> Result<(), OpError> {
    if post.text.is_empty() && post.attachments.is_empty() {
        return Err(ApiError::new(Code::Invalid, "an empty post without attachments says nothing")
            .hint("tieline post CHANNEL TEXT, or: tieline post CHANNEL - to read the text from stdin"));
    }
    if post.text.len() > POST_LEN_MAX {
        let len = post.text.len();
        return Err(ApiError::new(Code::Limit, format!("a post of {len} bytes is over {POST_LEN_MAX}"))
            .hint("attach the text as a file: tieline post CHANNEL TEXT --attach FILE"));
    }
    if post.attachments.len() > ATTACHMENTS_MAX {
        let count = post.attachments.len();
        return Err(ApiError::new(Code::Limit, format!("{count} attachments are over {ATTACHMENTS_MAX}")));
    }
    for file in &post.attachments {
        let bad_name = file.name.is_empty()
            || file.name.len() > 255
            || file.name.contains(|c: char| c.is_control() || matches!(c, '/' | '\\'))
            || [".", ".."].contains(&file.name.as_str());
        if bad_name {
            return Err(ApiError::new(Code::Invalid, "an attachment's name is a file name without folders"));
        }
        if file.size > ATTACHMENT_LEN_MAX {
            return Err(ApiError::new(
                Code::Limit,
                format!("an attachment of {} bytes is over {ATTACHMENT_LEN_MAX}", file.size),
            ));
        }
    }
    Ok(())
}

fn check_answer(ask: &EventAsk, answer: &Answer) -> Result<(), OpError> {
    let labels = || ask.options.iter().map(|option| option.label.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(wrong) = answer.choice.iter().find(|label| !ask.options.iter().any(|option| option.label == **label)) {
        return Err(ApiError::new(Code::Invalid, format!("{wrong:?} is none of: {}", labels())));
    }
    let free_text = answer.text.as_ref().is_some_and(|text| !text.is_empty());
    if answer.choice.is_empty() && (!free_text || ask.kind == AskKind::Approval) {
        return Err(ApiError::new(Code::Invalid, format!("choose one of: {}", labels())));
    }
    if answer.choice.len() > 1 && !ask.multi {
        return Err(ApiError::new(Code::Invalid, "only one label may be chosen"));
    }
    if answer.choice.len() > ask.options.len() {
        return Err(ApiError::new(Code::Invalid, "a label is chosen once"));
    }
    let len = serde_json::to_vec(answer).map_or(usize::MAX, |json| json.len());
    if len > ANSWER_LEN_MAX {
        return Err(ApiError::new(Code::Limit, format!("an answer of {len} bytes is over {ANSWER_LEN_MAX}"))
            .hint("post the text as a message, and answer with its number"));
    }
    Ok(())
}

fn check_settings(model: Option<&str>, cwd: Option<&str>) -> Result<(), OpError> {
    for (what, text, max) in [("model", model, MODEL_LEN_MAX), ("folder", cwd, CWD_LEN_MAX)] {
        let Some(text) = text else { continue };
        if text.len() > max {
            return Err(ApiError::new(Code::Limit, format!("a {what} of {} bytes is over {max}", text.len())));
        }
        if text.contains(char::is_control) {
            return Err(ApiError::new(Code::Invalid, format!("a {what} has no control characters")));
        }
    }
    Ok(())
}
