package httpapi

import (
	"net/http"
	"testing"

	"codehub/api"
	"codehub/internal/testing/harness/fixture"
)

// The audit log has the address of the client in every entry about a user's access.
func TestAuditHasAddresses(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	d := read[api.DeviceLogin](t, e.want(201, "", "POST", "/login/device", `{"name":"laptop"}`))
	if err := e.Auth.AnswerDevice(t.Context(), e.ann.Caller, d.UserCode, true); err != nil {
		t.Fatal(err)
	}
	redeemed := read[api.RedeemedLogin](t, e.want(201, "", "POST", "/login/token", `{"code":"`+d.DeviceCode+`"}`))
	e.want(200, "", "GET", "/session", "", header(api.TokenHeader, redeemed.Token.Token))
	a := e.want(204, "", "POST", "/users/me/password", `{"current":"`+password+`","new":"another good one"}`, as(e.ann))
	again := (&http.Response{Header: a.header}).Cookies()
	if len(again) != 1 {
		t.Fatalf("no new session: %v", a.header)
	}
	e.want(204, "", "POST", "/logout", "", func(r *http.Request) { r.AddCookie(again[0]) })
	for _, action := range []string{"token.create", "user.password", "logout"} {
		if n := fixture.Query[int](e, `SELECT count(*) FROM audit_log WHERE username = 'ann' AND action = $1 AND host(address) = '127.0.0.1'`, action); n != 1 {
			t.Errorf("%d entries %s with the address", n, action)
		}
	}
}
