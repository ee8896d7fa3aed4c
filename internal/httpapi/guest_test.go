package httpapi

import (
	"reflect"
	"testing"
	"time"

	"codehub/api"
)

// A guest who waits for a workspace sees no notes, archives or settings of it.
func TestGuestSeesNoSettings(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range []string{"ID", "Name", "Description", "ImageRef", "State", "Phase", "Operation", "Progress", "URL", "PhaseChangedAt", "CreatedAt", "UpdatedAt"} {
		seen[name] = true
	}
	full := api.Workspace{Conditions: map[string]api.Condition{"c": {}}}
	v := reflect.ValueOf(&full).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		switch at := v.FieldByIndex(f.Index); at.Interface().(type) {
		case string:
			at.SetString("x")
		case bool:
			at.SetBool(true)
		case int, int64:
			at.SetInt(1)
		case time.Time:
			at.Set(reflect.ValueOf(time.Now()))
		default:
			if at.Kind() == reflect.Pointer {
				at.Set(reflect.New(at.Type().Elem()))
			}
		}
	}
	v = reflect.ValueOf(forGuest(full))
	for _, f := range reflect.VisibleFields(v.Type()) {
		at := v.FieldByIndex(f.Index)
		if at.Kind() == reflect.Map && at.Len() == 0 {
			continue
		}
		if seen[f.Name] == at.IsZero() {
			t.Errorf("%s is %v", f.Name, at.Interface())
		}
	}
}
