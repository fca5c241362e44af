//! Tokens of agents' processes: each stands for one member of one channel, for as long as this node runs.

use std::collections::BTreeMap;
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
}

/// The tokens in use. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct AgentTokens(Arc<RwLock<Known>>);

impl AgentTokens {
    /// The token of a member whose turn begins. It stays the same between turns, so that a program which lives through
    /// them can go on using it, and dies with the node or with [`AgentTokens::revoke`].
    pub fn begin(&self, channel: ChannelId, member: MemberId, run: MessageId, rng: &mut dyn Rng) -> String {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.runs.insert((channel, member), run);
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
        }
    }

    /// The member's program was ended: its token is dead, the next turn gets a new one.
    pub fn revoke(&self, channel: ChannelId, member: MemberId) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = known.tokens.remove(&(channel, member)) {
            known.by_hash.remove(&Hash::of(token.as_bytes()));
        }
        known.runs.remove(&(channel, member));
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
