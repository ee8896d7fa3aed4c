package api

import "encoding/json"

// Nullable tells an absent JSON field (Set false) from null (Set true, Value
// nil) from a value.
type Nullable[T any] struct {
	Set   bool
	Value *T
}

// Value makes a Nullable that is set to v.
func Value[T any](v T) Nullable[T] { return Nullable[T]{Set: true, Value: &v} }

// Null makes a Nullable that is set to null.
func Null[T any]() Nullable[T] { return Nullable[T]{Set: true} }

// IsZero reports whether the field is absent, so that omitzero leaves it out.
func (n Nullable[T]) IsZero() bool { return !n.Set }

func (n Nullable[T]) MarshalJSON() ([]byte, error) { return json.Marshal(n.Value) }

func (n *Nullable[T]) UnmarshalJSON(b []byte) error {
	n.Set = true
	return json.Unmarshal(b, &n.Value)
}
