package cli

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/web/dashboard/catalogue"
)

// words returns the dashboard's English text for a name of the API, or the name if there is
// none. It is not known here what runs the server's workspaces.
func words(prefix, name string) string {
	return strings.ReplaceAll(catalogue.English.Known(prefix, name), "Docker", "Docker or Kubernetes")
}

// lowered is words without the capital, for the middle of a line.
func lowered(prefix, name string) string {
	text := words(prefix, name)
	first, size := utf8.DecodeRuneInString(text)
	second, _ := utf8.DecodeRuneInString(text[size:])
	if unicode.IsUpper(second) { // a name or an abbreviation
		return text
	}
	return strings.ToLower(string(first)) + text[size:]
}

// rawReasons are those of workspace.ErrorReason.IsRaw.
var rawReasons = []string{"Timeout", "RetryExceeded", "ActionFailed", "ImagePullFailed"}

// errorDetail is what users are told about the error of a workspace. The words of Docker and others
// are for administrators: the dashboard and the output as JSON have them.
func errorDetail(w api.Workspace) string {
	if w.ErrorMessage == nil {
		return ""
	}
	if w.ErrorReason != nil && slices.Contains(rawReasons, *w.ErrorReason) || w.State == "delete_failed" {
		return catalogue.English.Sentences(*w.ErrorMessage)
	}
	return *w.ErrorMessage
}

// problem returns the words for an error reason.
func problem(reason string) string {
	const prefix, suffix = "problem.", ".title"
	if text := words(prefix, reason+suffix); text != reason+suffix {
		return text
	}
	return reason
}
