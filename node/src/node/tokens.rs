//! Tokens of agents' processes: each stands for one member of one channel, for as long as its program may live.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use rand_core::Rng;
use tieline_proto::id::{ChannelId, Hash, MemberId, MessageId};

use crate::handle::Caller;
use crate::http::Tokens;

/// Bytes of a token: beyond guessing.
const TOKEN_LEN: usize = 32;

#[derive(Debug, Default)]
struct Known {
    /// By the token's hash, so that a look-up tells nothing by its timing.
    by_hash: BTreeMap<Hash, (ChannelId, MemberId)>,
    tokens: BTreeMap<(ChannelId, MemberId), String>,
    runs: BTreeMap<(ChannelId, MemberId), MessageId>,
    /// Members whose program ends with its turn, and so does their token.
    once: BTreeSet<(ChannelId, MemberId)>,
}

/// The tokens in use. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct AgentTokens(Arc<RwLock<Known>>);

impl AgentTokens {
    /// The token of a member whose turn begins. With `keeps` it stays the same between turns, so that a program which
    /// lives through them can go on using it, and dies with the node or with [`AgentTokens::revoke`]; without, it dies
    /// with the turn.
    pub fn begin(
        &self,
        (channel, member): (ChannelId, MemberId),
        run: MessageId,
        keeps: bool,
        rng: &mut dyn Rng,
    ) -> String {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.runs.insert((channel, member), run);
        if keeps {
            known.once.remove(&(channel, member));
        } else {
            known.forget(channel, member);
            known.once.insert((channel, member));
        }
        if let Some(token) = known.tokens.get(&(channel, member)) {
            return token.clone();
        }
        let mut bytes = [0; TOKEN_LEN];
        rng.fill_bytes(&mut bytes);
        let token = Hash(bytes).to_string();
        known.by_hash.insert(Hash::of(token.as_bytes()), (channel, member));
        known.tokens.insert((channel, member), token.clone());
        token
    }

    /// The member's turn is over; its token posts outside of any turn from now on.
    pub fn end(&self, channel: ChannelId, member: MemberId, run: MessageId) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.runs.get(&(channel, member)) == Some(&run) {
            known.runs.remove(&(channel, member));
            if known.once.remove(&(channel, member)) {
                known.forget(channel, member);
            }
        }
    }

    /// The member's program was ended: its token is dead, the next turn gets a new one.
    pub fn revoke(&self, channel: ChannelId, member: MemberId) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.forget(channel, member);
        known.runs.remove(&(channel, member));
    }
}

impl Known {
    fn forget(&mut self, channel: ChannelId, member: MemberId) {
        if let Some(token) = self.tokens.remove(&(channel, member)) {
            self.by_hash.remove(&Hash::of(token.as_bytes()));
        }
    }
}

impl Tokens for AgentTokens {
    fn agent(&self, token: &str) -> Option<Caller> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (channel, member) = *known.by_hash.get(&Hash::of(token.as_bytes()))?;
        let run = known.runs.get(&(channel, member)).copied();
        Some(Caller::Agent { channel, member, run })
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    use super::*;

    #[test]
    fn a_token_lives_as_long_as_its_program() {
        let tokens = AgentTokens::default();
        let mut rng = ChaCha20Rng::from_seed([7; 32]);
        let who = (ChannelId([1; 32]), MemberId(3));
        let mut begin = |run: u64, keeps: bool| tokens.begin(who, MessageId(run), keeps, &mut rng);
        let end = |run: u64| tokens.end(who.0, who.1, MessageId(run));

        let kept = begin(1, true);
        end(1);
        assert!(matches!(tokens.agent(&kept), Some(Caller::Agent { run: None, .. })), "a program that lives on");
        assert_eq!(begin(2, true), kept);
        end(2);

        let once = begin(3, false);
        assert!(once != kept && tokens.agent(&kept).is_none(), "the member runs another program by now");
        assert!(matches!(tokens.agent(&once), Some(Caller::Agent { run: Some(MessageId(3)), .. })));
        let next = begin(4, false);
        end(3);
        assert!(tokens.agent(&next).is_some() && next != once, "an earlier turn's end is not this one's");
        end(4);
        assert!(tokens.agent(&next).is_none() && tokens.agent(&once).is_none());

        let kept = begin(5, true);
        tokens.revoke(who.0, who.1);
        assert!(tokens.agent(&kept).is_none());
    }
}
