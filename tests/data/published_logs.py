"""Click logs in the forms of published data sets and of programs that write them, with how each column is to be read.

The contents are drawn at random, the forms are those of the files that are published: names, separators, quoting, what
stands for a missing value. Nothing here was chosen by what the reader does with it.
"""

import csv
import datetime
import io
import json

import numpy as np

from tests.data.strange_logs import Column

NOTHING, EITHER = "nothing", "id|number"
"""No feature; codes that both a category and a number do justice to."""


class Log:
    """Columns of so many rows, and how they are written."""

    def __init__(self, draw, rows):
        self.draw, self.rows, self.columns = draw, rows, []

    def add(self, name, role, values, form="{}", missing="", share=0.0):
        """With `share` of the values missing, which is written `missing`."""
        gone = self.draw.random(self.rows) < share
        values = [None if out else value for value, out in zip(values, gone, strict=True)]
        write = form if callable(form) else form.format
        written = [missing if value is None else write(value) for value in values]
        if "number" in role:
            values = [None if value is None else float(value) for value in values]
        self.columns.append(Column(name, role, values, written))

    def label(self, name, negative, positive, share=0.3):
        values = (self.draw.random(self.rows) < share).astype(int).tolist()
        self.columns.append(Column(name, "label", values, [(negative, positive)[each] for each in values]))

    def whole(self, low, high):
        return self.draw.integers(low, high, self.rows).tolist()

    def zipf(self, count):
        """Ids below `count`, few of them in most rows."""
        return (np.minimum(self.draw.zipf(1.3, self.rows), count) - 1).tolist()

    def money(self, middle=3.0, spread=1.5, digits=2):
        return np.round(np.exp(self.draw.normal(middle, spread, self.rows)), digits).tolist()

    def words(self, *choices):
        return [str(each) for each in self.draw.choice(list(choices), self.rows)]

    def hexes(self, count, digits=8):
        pool = [f"{int(each):0{digits}x}" for each in self.draw.integers(0, min(16**digits, 2**63) - 1, count)]
        return [pool[each] for each in self.zipf(count)]

    def seconds(self):
        return (1_397_000_000 + np.sort(self.draw.integers(0, 900_000, self.rows))).tolist()

    def text(self, delimiter=",", quoting=csv.QUOTE_MINIMAL, header=True, end="\n", before=""):
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator=end)
        if header:
            writer.writerow([each.name for each in self.columns])
        else:
            for number, column in enumerate(self.columns):
                column.name = f"c{number}"
        writer.writerows(zip(*(each.written for each in self.columns), strict=True))
        return (before + out.getvalue()).encode()


def _time(pattern):
    return lambda at: datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(pattern)


def criteo(log):
    log.label("label", 0, 1)
    for number in range(13):
        log.add(f"I{number + 1}", "number", [int(each) - 1 for each in log.money(2, 2, 0)], share=(0, 0.2)[number % 2])
    for number in range(26):
        log.add(f"C{number + 1}", "id", log.hexes((3, 30, 600, 2000)[number % 4]), share=(0, 0.1, 0.4)[number % 3])
    return "train.txt", log.text("\t", header=False)


def avazu(log):
    log.add("id", NOTHING, [10**19 + int(each) for each in log.draw.permutation(10**6)[: log.rows]])
    log.label("click", 0, 1, 0.17)
    log.add("hour", NOTHING + "|" + EITHER, log.seconds(), _time("%y%m%d%H"))
    log.add("C1", "id", log.draw.choice([1001, 1002, 1005, 1007, 1008, 1010, 1012], log.rows).tolist())
    log.add("banner_pos", "id", log.draw.choice([0, 1, 2, 3, 4, 5, 7], log.rows).tolist())
    for name in ("site_id", "site_domain", "app_id", "device_id", "device_model"):
        log.add(name, "id", log.hexes(300))
    log.add("device_type", "id", log.draw.choice([0, 1, 4, 5], log.rows).tolist())
    log.add("C14", "id", [375 + 9 * each for each in log.zipf(2600)])
    log.add("C15", "id", log.draw.choice([320, 300, 216, 728, 120, 1024, 480, 768], log.rows).tolist())
    log.add("C20", "id", [-1 if each < 3 else 100_000 + each for each in log.zipf(160)])
    return "train.csv", log.text()


def adult(log):
    log.add("", "number", log.whole(17, 90))
    log.add("", "id", log.words("State-gov", "Private", "Self-emp-inc"), missing="?", share=0.06)
    log.add("", "number", log.whole(12_285, 1_484_705))
    log.add("", "id", log.words("Bachelors", "HS-grad", "11th", "Masters", "9th"))
    log.add("", EITHER, log.whole(1, 17))
    log.add("", "id", log.words("Male", "Female"))
    log.add("", "number", [0 if each % 3 else int(each * 71) for each in log.whole(0, 1400)])
    log.add("", "number|id", log.whole(1, 99))
    log.label("", "<=50K", ">50K")
    for column in log.columns[1:]:
        column.written = [f" {each}" for each in column.written]
    return "adult.data", log.text(header=False)


def bank(log):
    log.add("age", "number", log.whole(18, 95))
    log.add("job", "id", log.words("unemployed", "blue-collar", "admin.", "self-employed"))
    log.add("default", "id", log.words("yes", "no"))
    log.add("balance", "number", log.whole(-3313, 71_188))
    log.add("day", EITHER, log.whole(1, 32))
    log.add("month", "id", log.words("jan", "oct", "may"))
    log.add("duration", "number", log.whole(4, 3025))
    log.add("campaign", EITHER, log.whole(1, 40))
    log.add("pdays", "number", [-1 if each % 4 else each for each in log.whole(1, 800)])
    log.label("y", "no", "yes", 0.12)
    for column in log.columns:
        column.written = [each if each.lstrip("-").isdigit() else f'"{each}"' for each in column.written]
    rows = zip(*(each.written for each in log.columns), strict=True)
    lines = [";".join(f'"{each.name}"' for each in log.columns), *map(";".join, rows)]
    return "bank-full.csv", "".join(f"{each}\n" for each in lines).encode()


def telco(log):
    log.add("customerID", NOTHING, [f"{i:04d}-{i * 7919 % 99991:05d}X" for i in range(log.rows)])
    log.add("gender", "id", log.words("Female", "Male"))
    log.add("SeniorCitizen", EITHER, log.whole(0, 2))
    log.add("Partner", "id", log.words("Yes", "No"))
    log.add("tenure", EITHER, log.whole(0, 73))
    log.add("PaymentMethod", "id", log.words("Electronic check", "Bank transfer (automatic)"))
    log.add("MonthlyCharges", "number", log.money(4, 0.4))
    log.add("TotalCharges", "number", log.money(7, 1), missing=" ", share=0.002)
    log.label("Churn", "No", "Yes")
    return "WA_Fn-UseC_-Telco-Customer-Churn.csv", log.text()


def talking_data(log):
    log.add("ip", "id", log.zipf(30_000))
    for name, count in (("app", 400), ("device", 500), ("os", 300), ("channel", 200)):
        log.add(name, "id", log.zipf(count))
    log.add("click_time", NOTHING, log.seconds(), _time("%Y-%m-%d %H:%M:%S"))
    log.label("is_attributed", 0, 1, 0.05)
    return "train_sample.csv", log.text()


def kuairand(log):
    log.add("user_id", "id", log.zipf(900))
    log.add("video_id", "id", log.zipf(5000))
    log.add("date", NOTHING + "|" + EITHER, log.seconds(), _time("%Y%m%d"))
    log.add("hourmin", EITHER, [each // 60 * 100 + each % 60 for each in log.whole(0, 1440)])
    log.add("time_ms", NOTHING, [each * 1000 + 373 for each in log.seconds()])
    log.label("is_click", 0, 1)
    log.add("is_rand", EITHER, log.whole(0, 2))
    log.add("play_time_ms", "number", log.whole(0, 200_000))
    log.add("duration_ms", "number", log.whole(5000, 300_000))
    log.add("tab", EITHER, log.whole(0, 15))
    return "log_standard_4_08_to_4_21_pure.csv", log.text()


def outbrain(log):
    log.add("display_id", "id", sorted(log.whole(1, log.rows // 5)))
    log.add("ad_id", "id", [7 + 13 * each for each in log.zipf(3000)])
    log.label("clicked", 0, 1, 0.2)
    return "clicks_train.csv", log.text()


def credit_default(log):
    log.add("ID", NOTHING, range(1, log.rows + 1))
    log.add("LIMIT_BAL", "number", [10_000 * each for each in log.whole(1, 100)])
    log.add("SEX", EITHER, log.whole(1, 3))
    log.add("EDUCATION", EITHER, log.whole(0, 7))
    log.add("PAY_0", EITHER, log.whole(-2, 9))
    log.add("BILL_AMT1", "number", log.whole(-15_308, 964_511))
    log.add("PAY_AMT1", "number", log.whole(0, 873_552))
    log.label("default payment next month", 0, 1)
    return "default_of_credit_card_clients.csv", log.text()


def higgs(log):
    log.label("", "0.000000000000000000e+00", "1.000000000000000000e+00", 0.5)
    for _ in range(8):
        values = [float(f"{each:.18e}") for each in log.draw.normal(0, 1, log.rows).astype(np.float32)]
        log.add("", "number", values, "{:.18e}")
    return "HIGGS.csv", log.text(header=False)


def steam(log):
    log.add("app_id", "id", [10 * each for each in log.zipf(4000)])
    log.add("helpful", "number|id", [int(each) - 1 for each in log.money(0.5, 1.5, 0)])
    log.add("date", NOTHING + "|id", log.seconds(), _time("%Y-%m-%d"))
    log.label("is_recommended", "false", "true", 0.8)
    log.add("hours", "number", log.money(3, 1.5, 1))
    log.add("user_id", "id", log.zipf(14_000_000))
    log.add("review_id", NOTHING, range(log.rows))
    return "recommendations.csv", log.text()


def ipinyou(log):
    log.label("click", 0, 1, 0.1)
    log.add("weekday", EITHER, log.whole(0, 7))
    log.add("hour", EITHER, log.whole(0, 24))
    log.add("bidid", NOTHING, [f"{i * 2654435761 % 2**64:032x}" for i in range(1, log.rows + 1)])
    log.add("timestamp", NOTHING, log.seconds(), lambda at: f"{_time('%Y%m%d%H%M%S')(at)}008")
    log.add("useragent", "id", log.words("windows_ie", "android_safari", "ios_safari"))
    log.add("IP", "id", [f"180.127.{each % 256}.*" for each in log.zipf(300)])
    log.add("region", "id", log.zipf(35))
    log.add("city", "id", log.zipf(370))
    log.add("slotid", "id", [f"mm_1001514{each}_2342_3" for each in log.zipf(60)])
    log.add("slotwidth", EITHER, log.draw.choice([160, 300, 728, 950], log.rows).tolist())
    log.add("slotprice", EITHER, log.draw.choice([0, 5, 20, 70, 118], log.rows).tolist())
    log.add("payprice", "number", log.whole(0, 300))
    log.add("creative", "id", log.hexes(80, 12))
    log.add("advertiser", "id", log.draw.choice([1458, 2259, 2997, 3358, 3476], log.rows).tolist())
    bags = [[int(each) for each in log.draw.integers(10_006, 10_130, log.draw.integers(1, 5))] for _ in range(log.rows)]
    log.add("usertag", "bag", bags, lambda bag: ",".join(map(str, bag)))
    return "train.log.txt", log.text("\t")


def porto_seguro(log):
    log.add("id", NOTHING, np.cumsum(log.whole(1, 4)).tolist())
    log.label("target", 0, 1, 0.04)
    log.add("ps_ind_01", EITHER, log.whole(0, 8))
    log.add("ps_ind_02_cat", EITHER, log.whole(-1, 5))
    log.add("ps_reg_03", "number", np.sqrt(log.draw.integers(1, 400, log.rows) / 16).tolist())
    log.add("ps_car_11_cat", EITHER, log.whole(1, 105))
    log.add("ps_calc_20_bin", EITHER, log.whole(0, 2))
    return "train.csv", log.text()


def shoppers(log):
    log.add("Administrative", EITHER, log.whole(0, 28))
    log.add("Administrative_Duration", "number", log.money(4, 1.3, 6))
    log.add("BounceRates", "number", np.round(log.draw.random(log.rows) / 5, 9).tolist())
    log.add("Month", "id", log.words("Feb", "Mar", "Nov"))
    log.add("OperatingSystems", "id", log.whole(1, 9))
    log.add("Region", "id", log.whole(1, 10))
    log.add("VisitorType", "id", log.words("Returning_Visitor", "New_Visitor"))
    log.add("Weekend", "id", log.words("TRUE", "FALSE"))
    log.label("Revenue", "FALSE", "TRUE", 0.15)
    return "online_shoppers_intention.csv", log.text()


def german_excel(log):
    def money(value):
        return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))

    log.add("Kunden-Nr", "id", [f"{each:06d}" for each in log.zipf(900)])
    log.add("PLZ", "id", [f"{1067 + 97 * each:05d}" for each in log.zipf(300)])
    log.add("Umsatz", "number", log.money(6, 1.5), money)
    log.add("Datum", NOTHING, log.seconds(), _time("%d.%m.%Y %H:%M"))
    log.add("Größe", "id", log.words("S", "M", "L", "Übergröße"))
    log.label("gekauft", "nein", "ja")
    return "Auswertung März.csv", log.text(";", end="\r\n", before="\ufeff")


def pandas_index(log):
    log.add("", NOTHING, range(log.rows))
    log.add("user", "id", [f"{each}.0" for each in log.zipf(400)])
    log.add(
        "genres", "bag", [sorted({f"g{each}" for each in log.draw.integers(0, 9, 3)}) for _ in range(log.rows)], str
    )
    log.add("price", "number", log.money(), missing="", share=0.05)
    log.label("label", "False", "True")
    return "df.csv", log.text()


def r_write_csv(log):
    log.add("", NOTHING, range(1, log.rows + 1), '"{}"')
    log.add("site", "id", log.words("a.com", "b, c", "d"), lambda each: f'"{each}"')
    log.add("age", "number", log.whole(18, 99), missing="NA", share=0.05)
    log.add("spend", "number", log.money(), missing="NA", share=0.02)
    log.add("member", "id", log.words("TRUE", "FALSE"))
    log.label("converted", 0, 1)
    lines = [",".join(f'"{each.name}"' for each in log.columns)]
    lines += [",".join(map(str, row)) for row in zip(*(each.written for each in log.columns), strict=True)]
    return "conversions.csv", "\n".join(lines).encode()


def mysql(log):
    log.add("user_id", "id", [10**9 + each for each in log.zipf(800)], missing="\\N", share=0.03)
    log.add("referrer", "id", log.words("google", "direct", "mail"), missing="\\N", share=0.2)
    log.add("amount", "number", log.money(), missing="\\N", share=0.1)
    log.add("created_at", NOTHING, log.seconds(), _time("%Y-%m-%d %H:%M:%S"))
    log.label("clicked", 0, 1)
    return "dump.tsv", log.text("\t")


def postgres(log):
    log.add("visitor", NOTHING + "|id", log.hexes(log.rows * 4, 16))
    log.add("plan_id", "id", log.zipf(12))
    log.add("tags", "bag", [[f"t{each}" for each in log.draw.integers(1, 9, 2)] for _ in range(log.rows)],
            lambda bag: "{" + ",".join(bag) + "}")  # fmt: skip
    log.add("at", NOTHING, log.seconds(), _time("%Y-%m-%d %H:%M:%S.123456+00"))
    log.label("bought", "f", "t")
    return "export.csv", log.text()


def devices(log):
    log.add("session", "id", log.hexes(500, 12))
    log.add("os_version", EITHER, log.words("10.2", "9.1", "11.0", "8.1"))
    log.add("screen", "id", log.words("1920x1080", "390x844"))
    log.add("age_group", "id", log.words("18-24", "25-34", "35-44"))
    log.add("zip", "id", [f"{501 + 89 * each:05d}" for each in log.zipf(400)])
    log.add("latitude", "number", np.round(log.draw.normal(45, 9, log.rows), 6).tolist())
    log.add("battery", "number", log.whole(1, 101), "{}%")
    log.add("ctr", "number", np.round(log.draw.random(log.rows), 4).tolist())
    log.label("installed", "no", "yes")
    return "devices.csv", log.text()


def shop_of_units(log):
    log.add("sku", "id", [f"{each:05d}" for each in log.zipf(700)])
    log.add("brand", "id", log.words("7", "3M", "Levi's", 'Say "Hi"'))
    log.add("price", "number", log.money(), "£{:,.2f}")
    log.add("discount", "number", log.whole(0, 61), "{}%")
    log.add("weight", "number", log.money(0, 1), "{} kg")
    log.add("categories", "bag", [[f"c {each}" for each in log.draw.integers(1, 20, 3)] for _ in range(log.rows)],
            lambda bag: " > ".join(bag))  # fmt: skip
    log.add("purchased_at", NOTHING, log.seconds(), _time("%m/%d/%Y %I:%M %p"))
    log.label("returned", "N", "Y", 0.1)
    return "orders.csv", log.text(quoting=csv.QUOTE_ALL)


def vehicle_coupons(log):
    log.add("destination", "id", log.words("No Urgent Place", "Home", "Work"))
    log.add("temperature", EITHER, log.draw.choice([30, 55, 80], log.rows).tolist())
    log.add("time", "id", log.words("2PM", "10AM", "6PM"))
    log.add("expiration", "id", log.words("1d", "2h"))
    log.add("age", "id", log.words("21", "26", "50plus", "below21"))
    log.add("income", "id", log.words("$37500 - $49999", "$100000 or More", "Less than $12500"))
    log.add("Bar", "id", log.words("never", "less1", "1~3", "4~8", "gt8"), share=0.01)
    log.label("Y", 0, 1, 0.57)
    return "in-vehicle-coupon-recommendation.csv", log.text()


def json_tags(log):
    log.add("item", "id", log.zipf(900))
    log.add("also_viewed", "bag", [[int(each) for each in log.draw.integers(1, 90, log.draw.integers(0, 4))]
                                   for _ in range(log.rows)], json.dumps)  # fmt: skip
    log.add("rating", EITHER, log.whole(1, 6), "{}.0")
    log.add("place", NOTHING + "|id", [f"{48 + each / 1e4:.4f},{2 + each / 1e4:.4f}" for each in log.zipf(900)])
    log.add("sum", "number", log.money(), lambda each: f"({each:,.2f})" if each < 3 else f"{each:,.2f}")
    log.columns[-1].values = [-each if each < 3 else each for each in log.columns[-1].values]
    log.label("like", 0, 1)
    return "reviews.csv", log.text()


FORMS = (
    criteo, avazu, adult, bank, telco, talking_data, kuairand, outbrain, credit_default, higgs, steam, ipinyou,
    porto_seguro, shoppers, german_excel, pandas_index, r_write_csv, mysql, postgres, devices, shop_of_units,
    vehicle_coupons, json_tags,
)  # fmt: skip


def write_published(folder, seed, rows):
    """Writes the log of this number; returns its path and columns."""
    log = Log(np.random.default_rng((seed, 1)), rows)
    make = FORMS[seed % len(FORMS)]
    name, content = make(log)
    path = folder / f"{seed}_{name}"
    path.write_bytes(content)
    return path, log.columns
