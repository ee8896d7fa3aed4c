package arrivals

import "testing"

func TestSelection(t *testing.T) {
	t.Parallel()
	users := []Person{{OldID: "a", OldName: "ann"}, {OldID: "b", OldName: "Bob"}}
	const id = "019a0000-0000-7000-8000-000000000001"
	found := func(id, owner, name string) Found {
		return Found{OwnerID: owner, Workspace: Workspace{OldID: id, OldName: name}}
	}
	list := []Found{found(id, "a", "one"), found("2", "a", "x/y"), found("3", "b", "one")}
	for name, c := range map[string]struct {
		s           Selection
		users, want string
	}{
		"all":     {Selection{}, "annBob", id + "23"},
		"user":    {Selection{User: "bob"}, "Bob", "3"},
		"id":      {Selection{Workspace: id}, "ann", id},
		"name":    {Selection{Workspace: "BOB/one"}, "Bob", "3"},
		"slash":   {Selection{Workspace: "ann/x/y"}, "ann", "2"},
		"no user": {Selection{User: "eve"}, "", ""},
		"unknown": {Selection{Workspace: "ann/other"}, "", ""},
		"neither": {Selection{Workspace: "one"}, "", ""},
	} {
		got, chosen, err := c.s.choose(users, list)
		var names, ids string
		for _, u := range got {
			names += u.OldName
		}
		for _, w := range chosen {
			ids += w.OldID
		}
		if names != c.users || ids != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %q, %v", name, names, ids, err)
		}
	}
}
