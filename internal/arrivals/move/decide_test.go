package move

import (
	"testing"

	"codehub/api"
	"codehub/internal/postgres"
)

func TestSelection(t *testing.T) {
	t.Parallel()
	users := []api.Account{{ID: "a", Username: "ann"}, {ID: "b", Username: "Bob"}}
	const id = "019a0000-0000-7000-8000-000000000001"
	list := []api.MoveWorkspace{{ID: "3", OwnerID: "b", Name: "one"}, {ID: "2", OwnerID: "a", Name: "x/y"}, {ID: id, OwnerID: "a", Name: "one"}}
	for name, c := range map[string]struct {
		s           Selection
		users, want string
	}{
		"all":     {Selection{All: true}, "annBob", id + "23"},
		"user":    {Selection{User: "bob"}, "Bob", "3"},
		"id":      {Selection{Workspace: id}, "ann", id},
		"name":    {Selection{Workspace: "BOB/one"}, "Bob", "3"},
		"slash":   {Selection{Workspace: "ann/x/y"}, "ann", "2"},
		"no user": {Selection{User: "eve"}, "", ""},
		"unknown": {Selection{Workspace: "ann/other"}, "", ""},
		"neither": {Selection{Workspace: "one"}, "", ""},
	} {
		got, moving, err := c.s.choose(users, list)
		var names, ids string
		for _, u := range got {
			names += u.Username
		}
		for _, w := range moving {
			ids += w.ID
		}
		if names != c.users || ids != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %q, %v", name, names, ids, err)
		}
	}
}

func TestDecideOwner(t *testing.T) {
	t.Parallel()
	const id = "019a0000-0000-7000-8000-000000000001"
	here := postgres.User{ID: id, Username: "Ann"}
	for name, c := range map[string]struct {
		o            owner
		known, taken postgres.User
		join         bool
		want         string
	}{
		"new":              {o: owner{old: api.Account{ID: id, Username: "ann"}}, want: Added},
		"taken":            {o: owner{old: api.Account{ID: id, Username: "ann"}}, taken: here, want: Left},
		"joined":           {o: owner{old: api.Account{ID: id, Username: "ann"}}, taken: here, join: true, want: Joined},
		"known":            {o: owner{old: api.Account{ID: id, Username: "ann"}, recorded: true, here: id}, known: here, want: Already},
		"removed here":     {o: owner{old: api.Account{ID: id, Username: "ann"}, recorded: true, here: id}, join: true, want: Left},
		"invalid username": {o: owner{old: api.Account{ID: id, Username: "-"}}, want: Left},
		"invalid id":       {o: owner{old: api.Account{ID: "x", Username: "ann"}}, want: Left},
	} {
		got := decideOwner(&c.o, c.known, c.taken, c.join)
		if got.result != c.want || (got.reason != "") != (c.want == Left) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
