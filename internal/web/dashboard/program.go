package dashboard

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"codehub/api"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// browserLogin is the page that asks whether a program on this machine may log in.
type browserLogin struct {
	Challenge, State, Name string
	Code                   string // that the program shows, too
	Port                   int
	Lasts                  int // seconds; 0: as long as possible
	Expires                time.Time
	Username               string
	Admin                  bool
}

// askBrowserLogin reads what a program has put into the address that it opens; false if that
// is not complete.
func askBrowserLogin(q url.Values) (b browserLogin, ok bool) {
	port, err := strconv.Atoi(q.Get("port"))
	b = browserLogin{Challenge: q.Get("challenge"), State: q.Get("state"), Name: q.Get("name"), Port: port}
	if lasts := q.Get("lasts"); lasts != "" && err == nil {
		b.Lasts, err = strconv.Atoi(lasts)
		b.Lasts = min(b.Lasts, int(auth.MaxProgramLogin/time.Second))
	}
	return b, err == nil && b.Lasts >= 0 && port >= 1024 && port <= 65535 && len(b.State) <= 128 && b.Challenge != "" && b.Name != "" && len(b.Name) <= 400
}

func (d *Dashboard) browserLoginPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	b, ok := askBrowserLogin(r.URL.Query())
	if !ok {
		d.fail(w, r, workspace.NotFound("login"))
		return
	}
	b.Expires = d.Auth.ProgramExpiry(time.Duration(b.Lasts) * time.Second)
	b.Username, b.Admin, b.Code = c.Username, c.Admin, api.LoginCode(b.Challenge)
	p := d.newPage(r, &c, "program.title", b)
	p.Plain = true
	// The form leads back to the program.
	p.Forms = "http://127.0.0.1:" + strconv.Itoa(b.Port)
	d.render(w, r, http.StatusOK, "program", p)
}

func (d *Dashboard) allowBrowserLogin(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	b, ok := askBrowserLogin(r.PostForm)
	if !ok {
		d.fail(w, r, workspace.NotFound("login"))
		return
	}
	expires, err := time.Parse(time.RFC3339, r.PostFormValue("expires"))
	if err != nil {
		d.fail(w, r, workspace.NotFound("login"))
		return
	}
	back := url.URL{Scheme: "http", Host: "127.0.0.1:" + strconv.Itoa(b.Port), Path: "/callback"}
	if r.PostFormValue("answer") != "allow" {
		back.RawQuery = url.Values{"error": {"access_denied"}, "state": {b.State}}.Encode()
		d.leave(w, r, back.String())
		return
	}
	code, err := d.Auth.AllowBrowser(r.Context(), c, b.Challenge, b.Name, expires)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	back.RawQuery = url.Values{"code": {code}, "state": {b.State}}.Encode()
	d.leave(w, r, back.String())
}

// deviceView is the page on which a user types in the code of a program, and then allows its
// login.
type deviceView struct {
	Code    string
	Problem string
	Pending *auth.PendingDevice // the login to answer, if the code is known
	// The user whom the program is to act as.
	Username string
	Admin    bool
	Answer   string // allow or refuse, after it
	Now      time.Time
}

func (d *Dashboard) devicePage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	d.showDevice(w, r, c, http.StatusOK, deviceView{})
}

func (d *Dashboard) showDevice(w http.ResponseWriter, r *http.Request, c workspace.Caller, status int, v deviceView) {
	v.Now, v.Username, v.Admin = d.Now(), c.Username, c.Admin
	p := d.newPage(r, &c, "device.title", v)
	p.Plain, p.Path = true, "/device"
	d.render(w, r, status, "device", p)
}

func (d *Dashboard) answerDevice(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	v := deviceView{Code: r.PostFormValue("code"), Answer: r.PostFormValue("answer")}
	var err error
	switch v.Answer {
	case "allow", "refuse":
		err = d.Auth.AnswerDevice(r.Context(), c, v.Code, v.Answer == "allow")
	default:
		var pending auth.PendingDevice
		pending, err = d.Auth.Device(r.Context(), c, v.Code)
		v.Pending, v.Answer = &pending, ""
	}
	l := d.set(r).lang
	switch workspace.CodeOf(err) {
	case "":
		if err != nil {
			d.fail(w, r, err)
			return
		}
		d.showDevice(w, r, c, http.StatusOK, v)
		return
	case workspace.CodeNotFound:
		v.Problem = l.T("device.unknown")
	case workspace.CodeLockedOut:
		retryAfter(w, err)
		v.Problem = l.N("login.locked", max(1, lockedFor(err)))
	default:
		d.fail(w, r, err)
		return
	}
	v.Pending, v.Answer = nil, ""
	d.showDevice(w, r, c, http.StatusUnprocessableEntity, v)
}
