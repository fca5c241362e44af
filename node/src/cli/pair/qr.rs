//! A link as a QR code of text: two modules a character, dark on light whatever the terminal's colors are.

use qrcode::{Color, EcLevel, QrCode};

/// Light modules around the code, without which cameras don't find it.
const QUIET_ZONE: usize = 2;

/// Draws a code; `None` when the text does not fit into one.
pub fn render(text: &str) -> Option<String> {
    let code = QrCode::with_error_correction_level(text.as_bytes(), EcLevel::M).ok()?;
    let width = code.width();
    let colors = code.to_colors();
    let is_light = |x: usize, y: usize| {
        let at = |n: usize| n.checked_sub(QUIET_ZONE).filter(|n| *n < width);
        match (at(x), at(y)) {
            (Some(x), Some(y)) => colors.get(y * width + x) != Some(&Color::Dark),
            _ => true,
        }
    };
    let side = width + 2 * QUIET_ZONE;
    let mut out = String::new();
    for y in (0..side).step_by(2) {
        // Terminals draw light on dark by default: light modules are the ones that are painted.
        out.extend((0..side).map(|x| match (is_light(x, y), y + 1 < side && is_light(x, y + 1)) {
            (true, true) => '█',
            (true, false) => '▀',
            (false, true) => '▄',
            (false, false) => ' ',
        }));
        out.push('\n');
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_square_with_a_quiet_zone() {
        let code = render("tieline:ABC").unwrap();
        let lines: Vec<_> = code.lines().collect();
        let side = lines[0].chars().count();
        assert!(lines.iter().all(|line| line.chars().count() == side));
        assert_eq!(lines.len(), side.div_ceil(2));
        assert!(lines[0].chars().all(|c| c == '█'));
        assert!(render(&"x".repeat(5000)).is_none());
    }
}
