package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"codehub/internal/gateway/inbound"
	"codehub/internal/workspace"
)

// maxBody bounds the body of a request with a session or token.
const maxBody = 1 << 20

// decode reads a JSON object into the struct that v points to. It refuses, and names,
// fields that v does not have (case matters), fields given twice, and values of
// another type. It also refuses a second value after the object, a body over
// maxBody (on open routes inbound.MaxOpenBody), and a Content-Type that a page of another
// origin can send without a preflight.
func (s *server) decode(w http.ResponseWriter, r *http.Request, v any) error {
	return s.decodeBody(w, r, v, false)
}

// decodeOptional is decode for calls whose body may be missing.
func (s *server) decodeOptional(w http.ResponseWriter, r *http.Request, v any) error {
	return s.decodeBody(w, r, v, true)
}

func (s *server) decodeBody(w http.ResponseWriter, r *http.Request, v any, optional bool) error {
	body, err := inbound.ReadBody(w, r, maxBody, s.cfg.ReadWithin)
	if err != nil {
		return unreadable(err)
	}
	if optional && len(body) == 0 {
		return nil
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return workspace.Errorf(codeUnsupportedMedia, "Send the body as Content-Type: application/json.")
	}
	if err := checkFields(body, jsonFields(reflect.TypeOf(v).Elem())); err != nil {
		return err
	}
	err = json.Unmarshal(body, v)
	clear(body) // it may have a secret
	if err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return malformed(wrong.Field, "is of the wrong type: "+wrong.Value+".")
		}
		var noTime *time.ParseError
		if errors.As(err, &noTime) {
			return workspace.Errorf(workspace.CodeInvalid, "%s is not a time like 2026-12-24T18:30:00Z.", boundedText(strings.Trim(noTime.Value, `"`)))
		}
		return workspace.Errorf(workspace.CodeInvalid, "A value in the body cannot be read: %s.", boundedText(err.Error()))
	}
	return nil
}

// readOpen reads the body of a request without a session, for decode.
func (s *server) readOpen(w http.ResponseWriter, r *http.Request) error {
	body, err := s.cfg.OpenBodies.Read(w, r, s.cfg.ReadWithin)
	if err != nil {
		return unreadable(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// unreadable is the error of a body that could not be read.
func unreadable(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return workspace.Errorf(workspace.CodeTooLarge, "The request's body is larger than %d bytes.", tooLarge.Limit)
	}
	return &workspace.Error{Code: workspace.CodeInvalid, Message: "The request's body could not be read.", Err: err}
}

// checkFields checks the top level of a JSON object; all bodies are flat.
func checkFields(body []byte, known []string) error {
	d := json.NewDecoder(bytes.NewReader(body))
	broken := workspace.Errorf(workspace.CodeInvalid, "The body is not a JSON object.")
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return broken
	}
	var seen []string
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return broken
		}
		name, _ := t.(string)
		switch {
		case !slices.Contains(known, name):
			return malformed(boundedText(name), "is unknown.")
		case slices.Contains(seen, name):
			return malformed(name, "is given twice.")
		}
		seen = append(seen, name)
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			return broken
		}
	}
	if _, err := d.Token(); err != nil {
		return broken
	}
	if _, err := d.Token(); err != io.EOF {
		return workspace.Errorf(workspace.CodeInvalid, "The body has content after the JSON object.")
	}
	return nil
}

func jsonFields(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// malformed is the error of a request that no page or command sends. It names the field as the API
// does.
func malformed(field, problem string) error {
	e := workspace.Errorf(workspace.CodeInvalid, "%s %s", field, problem)
	e.Details = map[string]any{"field": field}
	return e
}

// fieldError is the error of an invalid request, and names the invalid field as pages do.
func fieldError(field, problem string) error {
	return workspace.InvalidField(field, problem)
}

func boundedText(s string) string {
	if len(s) > 128 {
		s = strings.ToValidUTF8(s[:128], "") + "…"
	}
	return s
}
