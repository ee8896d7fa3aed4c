package embedded

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// account is an OS user.
type account struct {
	name     string
	uid, gid int
}

// accounts are the OS users of the server and of postgres.
type accounts struct {
	server   account // what codehub runs as
	postgres account // what postgres runs as, never root
}

// switched reports whether postgres runs as another user than the server.
func (a accounts) switched() bool { return a.server.uid != a.postgres.uid }

// attributes start a program as postgres's user, in its own session: a Ctrl-C for the
// server must not stop the database first.
func (a accounts) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.switched() {
		// No supplementary groups: postgres's user may be in groups, such as ssl-cert,
		// that this PostgreSQL does not need.
		attr.Credential = &syscall.Credential{Uid: uint32(a.postgres.uid), Gid: uint32(a.postgres.gid)}
	}
	return attr
}

// chooseAccounts chooses the users. A server that is not root runs postgres as its own
// user. A server that is root uses preferred if it is set, otherwise the system user
// postgres, otherwise nobody.
func chooseAccounts(preferred string) (accounts, error) {
	uid := os.Geteuid()
	self := account{name: userName(uid), uid: uid, gid: os.Getegid()}
	if self.name == "" {
		return accounts{}, fmt.Errorf("the embedded PostgreSQL needs its OS user to have a name, and uid %d has none: "+
			"add it to /etc/passwd, or set CODEHUB_DATABASE_URL to a server of your own", uid)
	}
	if uid != 0 {
		return accounts{server: self, postgres: self}, nil
	}
	names := []string{"postgres", "nobody"}
	if preferred != "" {
		names = []string{preferred}
	}
	for _, name := range names {
		acc, err := lookUp(name)
		if errors.As(err, new(user.UnknownUserError)) {
			continue
		}
		if err != nil {
			return accounts{}, err
		}
		if acc.uid == 0 {
			return accounts{}, fmt.Errorf("PostgreSQL must not run as root, and user %s has the uid of root", name)
		}
		return accounts{server: self, postgres: acc}, nil
	}
	return accounts{}, fmt.Errorf("the server is root, and there is no OS user %s that PostgreSQL could run as: create it",
		strings.Join(names, " or "))
}

func lookUp(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, fmt.Errorf("look up OS user %s: %w", name, err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return account{}, fmt.Errorf("look up OS user %s: %w", name, err)
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return account{}, fmt.Errorf("look up OS user %s: %w", name, err)
	}
	return account{name: name, uid: uid, gid: gid}, nil
}

// userName returns the name of a uid as PostgreSQL resolves it; "" if there is none. A
// statically linked codehub reads only /etc/passwd; id uses every source that
// PostgreSQL uses, such as LDAP.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	out, err := exec.Command("id", "-nu", strconv.Itoa(uid)).Output()
	name := strings.TrimSpace(string(out))
	if err != nil || name == strconv.Itoa(uid) {
		return ""
	}
	return name
}
