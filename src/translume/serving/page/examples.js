// Sentences to try, for users who have no text at hand, in the source language of the model.
import { element } from "./steps.js";

const SENTENCES = {
  en: ["The train to Vienna leaves at 7:30 AM.", "The bridge was built in 1973 and is 679 meters long.", "The museum had 17,705 visitors in June."],
  de: ["Der Zug nach Wien fährt um 7:30 Uhr ab.", "Die Brücke wurde 1973 gebaut.", "Im Juni kamen viele Besucher in das Museum."],
  fr: ["Le train pour Vienne part à 7 h 30.", "Le pont a été construit en 1973.", "Le musée a eu beaucoup de visiteurs en juin."],
  es: ["El tren a Viena sale a las 7:30.", "El puente se construyó en 1973.", "El museo tuvo muchos visitantes en junio."],
  it: ["Il treno per Vienna parte alle 7:30.", "Il ponte è stato costruito nel 1973.", "A giugno il museo ha avuto molti visitatori."],
  pt: ["O trem para Viena sai às 7h30.", "A ponte foi construída em 1973.", "O museu teve muitos visitantes em junho."],
  nl: ["De trein naar Wenen vertrekt om 7.30 uur.", "De brug werd in 1973 gebouwd.", "Het museum had in juni veel bezoekers."],
  sv: ["Tåget till Wien går klockan 7.30.", "Bron byggdes 1973.", "Museet hade många besökare i juni."],
  da: ["Toget til Wien kører klokken 7.30.", "Broen blev bygget i 1973.", "Museet havde mange besøgende i juni."],
  nb: ["Toget til Wien går klokken 7.30.", "Broen ble bygd i 1973.", "Museet hadde mange besøkende i juni."],
  fi: ["Juna Wieniin lähtee kello 7.30.", "Silta rakennettiin vuonna 1973.", "Museossa oli kesäkuussa paljon kävijöitä."],
  pl: ["Pociąg do Wiednia odjeżdża o 7:30.", "Most zbudowano w 1973 roku.", "W czerwcu muzeum miało wielu gości."],
  cs: ["Vlak do Vídně odjíždí v 7.30.", "Most byl postaven v roce 1973.", "Muzeum mělo v červnu mnoho návštěvníků."],
  hu: ["A bécsi vonat 7:30-kor indul.", "A híd 1973-ban épült.", "A múzeumnak júniusban sok látogatója volt."],
  ro: ["Trenul spre Viena pleacă la 7:30.", "Podul a fost construit în 1973.", "Muzeul a avut mulți vizitatori în iunie."],
  tr: ["Viyana treni saat 7.30'da kalkıyor.", "Köprü 1973'te yapıldı.", "Müzenin haziranda çok ziyaretçisi vardı."],
  el: ["Το τρένο για τη Βιέννη φεύγει στις 7:30.", "Η γέφυρα χτίστηκε το 1973."],
  ru: ["Поезд в Вену отправляется в 7:30.", "Мост был построен в 1973 году.", "В июне в музее было много посетителей."],
  uk: ["Потяг до Відня відправляється о 7:30.", "Міст збудували у 1973 році."],
  bg: ["Влакът за Виена тръгва в 7:30.", "Мостът е построен през 1973 г."],
  ar: ["يغادر القطار إلى فيينا في الساعة 7:30.", "بني الجسر عام 1973."],
  he: ["הרכבת לווינה יוצאת בשעה 7:30.", "הגשר נבנה בשנת 1973."],
  hi: ["वियना की ट्रेन 7:30 बजे जाती है।", "यह पुल 1973 में बना था।"],
  id: ["Kereta ke Wina berangkat pukul 7.30.", "Jembatan itu dibangun pada tahun 1973."],
  vi: ["Tàu đi Viên khởi hành lúc 7:30.", "Cây cầu được xây dựng năm 1973."],
  ja: ["ウィーン行きの列車は7時30分に出発します。", "この橋は1973年に建てられました。", "6月、博物館には多くの人が訪れました。"],
  ko: ["빈으로 가는 기차는 7시 30분에 출발합니다.", "이 다리는 1973년에 지어졌습니다."],
  zh: ["开往维也纳的火车七点半发车。", "这座桥建于1973年，长679米。", "六月博物馆有很多参观者。"],
};

export const sentencesOf = (code) => SENTENCES[(code || "en").toLowerCase().split(/[-_]/)[0]] ?? [];

// Show the examples of a language; onpick(sentence) is called on a click.
export function showExamples(box, code, onpick) {
  const found = sentencesOf(code);
  box.replaceChildren(box.firstElementChild, ...found.map((sentence) =>
    element("button", { type: "button", lang: code ?? "", onclick: () => onpick(sentence) }, sentence)));
  return found.length > 0;
}
