package auth

import (
	"cmp"
	"time"
)

// Settings are the limits of logins, as codehub serve declares them. 0 is the default.
type Settings struct {
	LoginQueue int           `name:"login-queue" env:"CODEHUB_LOGIN_QUEUE" min:"1" max:"1000" default:"32" help:"Logins of one address that may wait for a password check."`
	LoginWait  time.Duration `name:"login-wait" env:"CODEHUB_LOGIN_WAIT" min:"100ms" max:"1m" default:"10s" help:"Longest time that a login waits for a password check."`

	NoPasswordLogin bool `name:"no-password-login" env:"CODEHUB_NO_PASSWORD_LOGIN" help:"Let users log in with identity providers alone; codehub reset-password lets one in with a password."`
	RequirePasskey  bool `name:"require-passkey" env:"CODEHUB_REQUIRE_PASSKEY" help:"Require a passkey for logins with a password; users without one register it at their next login."`
}

func (s Settings) withDefaults() Settings {
	return Settings{
		LoginQueue: cmp.Or(s.LoginQueue, 32),
		LoginWait:  cmp.Or(s.LoginWait, 10*time.Second),

		NoPasswordLogin: s.NoPasswordLogin,
		RequirePasskey:  s.RequirePasskey,
	}
}
