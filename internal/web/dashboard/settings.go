package dashboard

import (
	"net/http"

	"codehub/api"
	"codehub/internal/workspace"
)

// settingsView is the page of the server's settings.
type settingsView struct {
	Server   string
	Given    []api.Setting
	Defaults []api.Setting
}

func (d *Dashboard) settingsPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	all, err := d.Admin.Settings(r.Context(), c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v := settingsView{Server: all.Server}
	for _, s := range all.Settings {
		if s.From == api.FromDefault {
			v.Defaults = append(v.Defaults, s)
		} else {
			v.Given = append(v.Given, s)
		}
	}
	p := d.newPage(r, &c, "settings.title", v)
	p.Nav = "admin"
	d.render(w, r, http.StatusOK, "settings", p)
}
