package httpapi

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/base/setting"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/imageref"

	"golang.org/x/text/unicode/norm"
)

// checkTexts checks the texts of in, and replaces each by the form in which it is stored.
func checkTexts(in *workspace.Edit) error {
	for _, t := range workspace.Texts {
		v := *t.New(in)
		if v == nil {
			continue
		}
		if !t.Line {
			if err := checkText(t.Name, *v, t.Max); err != nil {
				return err
			}
			continue
		}
		line, err := checkLine(t.Name, *v, t.Max, t.Required)
		if err != nil {
			return err
		}
		*t.New(in) = &line
	}
	return nil
}

// checkName returns a name in the form in which it is stored.
func checkName(s string) (string, error) { return checkLine("name", s, workspace.MaxName, true) }

// checkLine returns a line in the form in which it is stored: Unicode NFC, without spaces
// around it.
func checkLine(field, s string, most int, required bool) (string, error) {
	s = norm.NFC.String(strings.TrimSpace(s))
	switch {
	case required && s == "":
		return "", fieldError(field, "is required.")
	case required && !workspace.Visible(s):
		return "", fieldError(field, "must contain a visible character.")
	case utf8.RuneCountInString(s) > most:
		return "", fieldError(field, fmt.Sprintf("is too long: at most %d characters.", most))
	case strings.ContainsFunc(s, workspace.Unprintable):
		return "", fieldError(field, "must not contain control characters.")
	}
	return s, nil
}

func checkText(field, s string, most int) error {
	if len(s) > most {
		return fieldError(field, fmt.Sprintf("is too long: at most %d bytes.", most))
	}
	if strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' }) {
		return fieldError(field, "must not contain control characters.")
	}
	return nil
}

// checkImageRef refuses texts that are not image references, such as options, blanks and
// URLs.
func checkImageRef(s string) error {
	if len(s) > imageref.MaxLength {
		return fieldError("image_ref", fmt.Sprintf("is too long: at most %d bytes.", imageref.MaxLength))
	}
	if !imageref.Valid(s) {
		return fieldError("image_ref", "is not an image reference like registry/name:tag.")
	}
	return nil
}

func checkTimeZone(name string) error {
	if name != "" && !environ.ValidZone(name) {
		return fieldError("time_zone", "must be a time zone like Asia/Seoul.")
	}
	return nil
}

func checkTTL(field string, v *int) error {
	if v != nil && (*v < 0 || *v > workspace.MaxTTL) {
		return fieldError(field, fmt.Sprintf("must be between 0 (never) and %d seconds.", workspace.MaxTTL))
	}
	return nil
}

// checkBackups checks the settings of a workspace's backups; an empty rule is the server's.
func checkBackups(interval *int, keep string) error {
	if v := interval; v != nil && (*v < 0 || *v > 0 && *v < workspace.MinBackupInterval || *v > workspace.MaxTTL) {
		return fieldError("backup_interval_seconds", fmt.Sprintf("must be 0 (none), or between %d and %d seconds.", workspace.MinBackupInterval, workspace.MaxTTL))
	}
	if keep == "" {
		return nil
	}
	if _, err := workspace.ParseKeep(keep); err != nil || len(keep) > workspace.MaxBackupKeep {
		return fieldError("backup_keep", "must be a rule such as 24h,7d,4w,6m.")
	}
	return nil
}

func checkDesired(v *string) (*workspace.DesiredState, error) {
	if v == nil {
		return nil, nil
	}
	d, ok := workspace.ParseDesiredState(*v)
	if !ok {
		return nil, fieldError("desired_state", "must be ARCHIVED, STANDBY or RUNNING.")
	}
	return &d, nil
}

// awakeSlack is how far a client's clock may be ahead, so that a request for the maximum
// is accepted.
const awakeSlack = time.Minute

func (s *server) checkKeepAwake(v api.Nullable[time.Time], now time.Time) error {
	switch {
	case v.Value == nil:
		return nil
	case !v.Value.After(now):
		return fieldError("keep_awake_until", "must be in the future.")
	case v.Value.Sub(now) > s.cfg.KeepAwakeMax+awakeSlack:
		return fieldError("keep_awake_until", "must be within the next "+setting.Duration(s.cfg.KeepAwakeMax)+".")
	}
	return nil
}
