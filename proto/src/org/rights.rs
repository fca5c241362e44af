//! Who may do what: one table.

use crate::entry::Role;

/// What a device can ask to do. Checked by the home and, where it touches their boxes, by residents too.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Action {
    /// Read channels.
    Read,
    /// Post messages and attachments.
    Post,
    /// Answer cards: questions and approvals.
    Answer,
    /// Interrupt, pause, resume, kill and revive members; decide held turns and deliveries.
    Operate,
    /// Run turns of members that live on it.
    HostTurns,
    /// Add, configure, rename and remove members.
    ManageMembers,
    /// Make, configure and archive channels.
    ManageChannels,
    /// Enrol devices as observers or members.
    EnrolDevice,
    /// Revoke devices.
    RevokeDevice,
    /// Change a device's role or name.
    ChangeDevice,
    /// Give a channel another home.
    MoveHome,
}

/// The least role for each action. Roles include those below them.
pub const RIGHTS: &[(Action, Role)] = &[
    (Action::Read, Role::Observer),
    (Action::Post, Role::Member),
    (Action::Answer, Role::Member),
    (Action::Operate, Role::Member),
    (Action::HostTurns, Role::Member),
    (Action::ManageMembers, Role::Admin),
    (Action::ManageChannels, Role::Admin),
    (Action::EnrolDevice, Role::Admin),
    (Action::RevokeDevice, Role::Admin),
    (Action::ChangeDevice, Role::Owner),
    (Action::MoveHome, Role::Owner),
];

/// Highest role that enrolment gives. Admins and owners are made by promotion, so that a photographed or relayed offer
/// is never worth that much.
pub const ENROLLED_ROLE_MAX: Role = Role::Member;

/// Whether a role is enough for an action. An action that the table lacks is nobody's.
#[must_use]
pub fn allows(role: Role, action: Action) -> bool {
    RIGHTS.iter().any(|(of, least)| *of == action && role >= *least)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLES: [Role; 4] = [Role::Observer, Role::Member, Role::Admin, Role::Owner];

    #[test]
    fn each_action_stands_once_and_owners_may_all() {
        for (index, (action, _)) in RIGHTS.iter().enumerate() {
            assert!(allows(Role::Owner, *action), "{action:?}");
            assert_eq!(RIGHTS.iter().position(|(other, _)| other == action), Some(index), "{action:?} stands twice");
        }
        assert!(RIGHTS.iter().any(|(action, _)| *action == Action::MoveHome));
    }

    #[test]
    fn a_higher_role_may_all_that_a_lower_one_may() {
        for (action, _) in RIGHTS {
            let may: Vec<_> = ROLES.iter().map(|role| allows(*role, *action)).collect();
            assert!(may.is_sorted(), "{action:?}: {may:?}");
        }
    }

    #[test]
    fn observers_only_read() {
        let observer: Vec<_> = RIGHTS.iter().filter(|(action, _)| allows(Role::Observer, *action)).collect();
        assert_eq!(observer, [&(Action::Read, Role::Observer)]);
    }
}
