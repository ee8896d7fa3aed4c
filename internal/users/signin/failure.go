package signin

import "fmt"

// Reason is why a login with a provider failed, for its page and the log.
type Reason string

const (
	// Expired: the browser has not begun this login, or too long ago.
	Expired Reason = "expired"
	// Denied: the provider refused the login, or the user cancelled it.
	Denied Reason = "denied"
	// Unavailable: the provider does not respond, or not as it should.
	Unavailable Reason = "unavailable"
	// NotAllowed: the user is in none of the allowed groups.
	NotAllowed Reason = "not_allowed"
	// NoUsername: the provider gave no name that can be a username.
	NoUsername Reason = "no_username"
	// NameTaken: another user has the username. A subject is never merged with a user.
	NameTaken Reason = "name_taken"
	// Disabled: an administrator has disabled the user.
	Disabled Reason = "disabled"
	// NotSetUp: there is no user yet, and this one would be no administrator.
	NotSetUp Reason = "not_set_up"
	// OneAccount: the server has one account, and another user has it.
	OneAccount Reason = "one_account"
	// NoRefresh: the provider gave no refresh token, without which it cannot be asked again.
	NoRefresh Reason = "no_refresh"
	// Ended: the provider has ended its session meanwhile.
	Ended Reason = "ended"
	// Linked: the identity is another user's.
	Linked Reason = "linked"
	// OtherSession: the login that was to be linked is not this browser's any more.
	OtherSession Reason = "other_session"
)

// Failure is a login that failed.
type Failure struct {
	Reason   Reason
	Username string // of NameTaken
	Err      error  // for the log
}

func (f *Failure) Error() string {
	if f.Err == nil {
		return string(f.Reason)
	}
	return fmt.Sprintf("%s: %v", f.Reason, f.Err)
}

func (f *Failure) Unwrap() error { return f.Err }

func fail(why Reason, err error) *Failure { return &Failure{Reason: why, Err: err} }
