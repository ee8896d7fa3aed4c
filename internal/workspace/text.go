package workspace

import "unicode"

// Invisible reports whether a character is shown as nothing: fillers such as U+3164,
// which count as letters, zero-width characters, characters that change the direction
// of text, variation selectors, and blanks other than U+0020.
func Invisible(r rune) bool {
	switch {
	case unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector, unicode.Bidi_Control, unicode.Cf, unicode.Cc):
		return true
	case r == '\u2800': // a Braille pattern without dots
		return true
	}
	return r != ' ' && unicode.IsSpace(r)
}

// Unprintable reports control characters, all kinds of line breaks, and characters that change the
// direction of the text around them. No text of one line may have them.
func Unprintable(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r)
}

// Visible reports whether people can see the text: it has a character that is neither
// invisible nor a space, nor a mark that only changes the character before it, nor
// unassigned.
func Visible(s string) bool {
	for _, r := range s {
		if r != ' ' && !Invisible(r) && unicode.IsGraphic(r) && !unicode.In(r, unicode.Mn, unicode.Me) {
			return true
		}
	}
	return false
}
