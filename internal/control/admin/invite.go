package admin

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// maxImported bounds the users of one import, which one transaction creates.
const maxImported = 1000

// invitedOf is an account with a new invitation, whose secret it shows.
func (s *Service) invitedOf(a api.Account, secret string) api.Account {
	if s.cfg.URL != nil {
		// The secret is in the fragment, which browsers send to no server.
		a.InvitationURL = strings.TrimSuffix(s.cfg.URL.String(), "/") + "/invitation#" + secret
	}
	return a
}

// InviteAccount gives a user a new invitation; see postgres.DB.Invite. CodeNotSupported if users
// do not log in with passwords.
func (s *Service) InviteAccount(ctx context.Context, caller workspace.Caller, id string) (api.Account, error) {
	secret, hash, err := s.cfg.Passwords.NewInvitation()
	if err != nil {
		return api.Account{}, err
	}
	a, err := s.cfg.Store.Invite(ctx, caller, id, hash)
	if err != nil {
		return api.Account{}, err
	}
	return s.invitedOf(a, secret), nil
}

// invite creates users with invitations: all or none.
func (s *Service) invite(ctx context.Context, caller workspace.Caller, list []postgres.User) ([]api.Account, error) {
	secrets, in := make([]string, len(list)), make([]postgres.Invited, len(list))
	for i, u := range list {
		var err error
		in[i].User = u
		if secrets[i], in[i].Hash, err = s.cfg.Passwords.NewInvitation(); err != nil {
			return nil, err
		}
	}
	accounts, err := s.cfg.Store.CreateInvited(ctx, caller, in)
	var made []api.Account
	for i, a := range accounts {
		made = append(made, s.invitedOf(a, secrets[i]))
	}
	return made, err
}

// ImportAccounts creates the users of a list, all or none, each with an invitation. CodeInvalid
// with the wrong lines in its details (api.ImportProblem); the errors of CreateAccount.
func (s *Service) ImportAccounts(ctx context.Context, caller workspace.Caller, in api.ImportAccounts) (api.ImportedAccounts, error) {
	// Check the caller before the list.
	if _, err := s.cfg.Store.Account(ctx, caller, caller.UserID); err != nil {
		return api.ImportedAccounts{}, err
	}
	list := importedList{names: s.cfg.Passwords, lines: map[string]int{}}
	list.read(in.CSV)
	names := make([]string, len(list.users))
	for i, u := range list.users {
		names[i] = u.Username
	}
	taken, err := s.cfg.Store.TakenNames(ctx, caller, names)
	if err != nil {
		return api.ImportedAccounts{}, err
	}
	for _, name := range taken {
		list.fail(list.lines[postgres.UsernameKey(name)], api.ImportTaken, "the username %q is taken", name)
	}
	if len(list.problems) > 0 {
		return api.ImportedAccounts{}, list.refused()
	}
	made, err := s.invite(ctx, caller, list.users)
	return api.ImportedAccounts{Users: made}, err
}

// importedList reads a list of users.
type importedList struct {
	names    *auth.Auth
	users    []postgres.User
	lines    map[string]int // by username_key
	problems []api.ImportProblem
}

func (l *importedList) fail(line int, reason, format string, args ...any) {
	l.problems = append(l.problems, api.ImportProblem{Line: line, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// refused is the error of a list with problems.
func (l *importedList) refused() error {
	const most = 10
	slices.SortStableFunc(l.problems, func(a, b api.ImportProblem) int { return a.Line - b.Line })
	var texts []string
	for _, p := range l.problems[:min(most, len(l.problems))] {
		texts = append(texts, fmt.Sprintf("line %d: %s", p.Line, p.Message))
	}
	text := strings.Join(texts, "; ")
	if more := len(l.problems) - most; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	e := workspace.Errorf(workspace.CodeInvalid, "The list has errors, so no user was created: %s.", text)
	e.Details = map[string]any{"lines": l.problems}
	return e
}

// importColumns are the columns that a list may have.
var importColumns = []string{"name", "admin", "max_running", "max_workspaces", "max_bytes"}

// read reads all lines, and finds everything that is wrong with each of them alone.
func (l *importedList) read(text string) {
	if !utf8.ValidString(text) {
		l.fail(1, api.ImportFormat, "the list is not in UTF-8")
		return
	}
	r := csv.NewReader(bufio.NewReader(strings.NewReader(strings.TrimPrefix(text, "\ufeff"))))
	r.FieldsPerRecord, r.TrimLeadingSpace = -1, true
	header, err := r.Read()
	if err != nil {
		l.fail(1, api.ImportFormat, "the list has no line with the names of its columns, such as name,admin")
		return
	}
	for i, column := range header {
		header[i] = strings.ToLower(strings.TrimSpace(column))
		if !slices.Contains(importColumns, header[i]) || slices.Contains(header[:i], header[i]) {
			l.fail(1, api.ImportColumns, "the column %q is unknown or repeated; the columns are %s", column, strings.Join(importColumns, ", "))
		}
	}
	if !slices.Contains(header, "name") {
		l.fail(1, api.ImportColumns, "the column name is missing")
	}
	if len(l.problems) > 0 {
		return
	}
	for {
		record, err := r.Read()
		var wrong *csv.ParseError
		switch {
		case err == io.EOF && len(l.users) == 0 && len(l.problems) == 0:
			l.fail(1, api.ImportFormat, "the list has no users")
			return
		case err == io.EOF:
			return
		case errors.As(err, &wrong):
			l.fail(wrong.Line, api.ImportFormat, "the quotes are wrong")
			return // of the next lines it is not known where they begin
		case err != nil:
			l.fail(1, api.ImportFormat, "the list cannot be read")
			return
		}
		line, _ := r.FieldPos(0)
		if len(l.users) == maxImported {
			l.fail(line, api.ImportFormat, "a list has at most %d users", maxImported)
			return
		}
		l.add(line, header, record)
	}
}

// add reads the user of a line.
func (l *importedList) add(line int, header, record []string) {
	var u postgres.User
	if len(record) != len(header) {
		l.fail(line, api.ImportColumns, "the line has %d values for %d columns", len(record), len(header))
		return
	}
	for i, value := range record {
		value = strings.TrimSpace(value)
		if header[i] == "name" {
			u.Username = value
			continue
		}
		if value == "" {
			continue // the default
		}
		ok := false
		if header[i] == "admin" {
			u.Admin, ok = strings.EqualFold(value, "true"), strings.EqualFold(value, "true") || strings.EqualFold(value, "false")
		} else if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			ok = setLimit(&u, header[i], n)
		}
		if !ok {
			l.fail(line, api.ImportValue, "the value %q of %s is invalid", value, header[i])
		}
	}
	name, err := l.names.NewName(u.Username)
	if err != nil {
		l.fail(line, api.ImportName, "the username %q is invalid: it has 1 to 64 letters, digits or . _ @ - and starts with a letter or digit", u.Username)
		return
	}
	u.Username = name
	key := postgres.UsernameKey(name)
	if first, ok := l.lines[key]; ok {
		l.fail(line, api.ImportTwice, "the username %q is on line %d, too", name, first)
		return
	}
	l.lines[key] = line
	l.users = append(l.users, u)
}

// setLimit sets the limit of a column; false if the number is not one.
func setLimit(u *postgres.User, column string, n int64) bool {
	small := int(min(n, MaxRunning+1, MaxWorkspaces+1))
	switch column {
	case "max_running":
		u.MaxRunning = &small
	case "max_workspaces":
		u.MaxWorkspaces = &small
	case "max_bytes":
		u.MaxBytes = &n
	}
	return checkLimits(u.MaxRunning, u.MaxWorkspaces, u.MaxBytes) == nil
}
