package config

import (
	"fmt"
	"iter"
	"reflect"
	"strconv"
	"strings"
	"time"

	"codehub/internal/base/setting"
)

// Fields lists the fields of all settings, those of embedded groups included. Their
// Index is relative to Config.
func Fields() iter.Seq[reflect.StructField] {
	return func(yield func(reflect.StructField) bool) { walk(reflect.TypeFor[Config](), nil, yield) }
}

func walk(t reflect.Type, index []int, yield func(reflect.StructField) bool) bool {
	for i := range t.NumField() {
		f := t.Field(i)
		f.Index = append(index[:len(index):len(index)], i)
		if _, group := f.Tag.Lookup("embed"); group {
			if !walk(f.Type, f.Index, yield) {
				return false
			}
		} else if f.Tag.Get("name") != "" && !yield(f) {
			return false
		}
	}
	return true
}

// variable returns the environment variable by which messages name a setting.
func variable(f reflect.StructField) string {
	env := f.Tag.Get("env")
	return env[strings.LastIndex(env, ",")+1:]
}

// bounds checks the settings whose fields have the tags min and max; the tag or names a further value.
func (c *Config) bounds() error {
	for f := range Fields() {
		least, most := f.Tag.Get("min"), f.Tag.Get("max")
		if least == "" {
			continue
		}
		v, shown := reflect.ValueOf(c).Elem().FieldByIndex(f.Index).Int(), ""
		lo, hi := parseBound(f.Type, least), parseBound(f.Type, most)
		zero := f.Tag.Get("or") == "0"
		if lo <= v && v <= hi || zero && v == 0 {
			continue
		}
		kind := "number"
		if shown = fmt.Sprint(v); f.Type == reflect.TypeFor[time.Duration]() {
			kind, shown = "duration", setting.Duration(time.Duration(v))
			least, most = setting.Duration(time.Duration(lo)), setting.Duration(time.Duration(hi))
		}
		do := fmt.Sprintf("give a %s from %s to %s", kind, least, most)
		if zero {
			do += ", or 0"
		}
		return setting.Invalid(variable(f), shown+" is out of bounds", do)
	}
	return nil
}

// parseBound parses the tag min or max. It panics on an invalid tag, so every test
// finds one.
func parseBound(t reflect.Type, text string) int64 {
	if t == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		return int64(d)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}
